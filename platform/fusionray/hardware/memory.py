"""The memory that is free on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Return the memory that is free on this machine, or within the limit of its container."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):
        limit = int((CGROUP / "memory.max").read_text())
        free = min(free, limit - int((CGROUP / "memory.current").read_text()))
    return max(0, free)
