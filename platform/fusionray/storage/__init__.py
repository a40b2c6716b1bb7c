"""Files: local folders and object stores alike, files that only their owner reads, and leases on shared folders."""
