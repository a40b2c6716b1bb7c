"""The engine: runs any recipe on one device, alone or as a rank of a process group. Knows torch, not Ray."""
