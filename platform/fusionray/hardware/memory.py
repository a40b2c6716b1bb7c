"""The memory of this machine and this process, and how freed memory becomes free."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
# Parameters of mallopt(3): blocks from this size on are mapped one by one; so much freed memory may be kept.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES, KEPT_BYTES = 4 * 2**20, 32 * 2**20


def free_bytes() -> int:
    """Return the memory that is free on this machine, or within the limit of its container."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, limit - int((CGROUP / "memory.current").read_text()))
    return max(0, free)


def resident_bytes() -> int:
    """Return the memory that this process occupies now."""
    return status_bytes("VmRSS")


def status_bytes(field: str) -> int:
    """Read a size from the process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def return_freed_memory(large_block_bytes: int = LARGE_BLOCK_BYTES) -> None:
    """Let the C library return the memory of pictures to the system when they are freed.

    By default glibc learns from large blocks to keep such blocks, for each thread: threads that have decoded 25 million
    pixels each held 400 MiB for ever, beside any budget. Source: mallopt(3). Other C libraries have no such function.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, large_block_bytes)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
