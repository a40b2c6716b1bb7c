"""Dry run: FLOPs, memory, batch and strategy of a run, from one step on this machine."""
