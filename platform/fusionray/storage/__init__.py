"""Storage: files on local disks and object stores, atomic and private files, leases on shared folders."""
