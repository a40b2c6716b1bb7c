"""The memory of this machine and this process, and how freed memory becomes free."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

CGROUP, GROUPS_FILE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Of the two versions of control groups: limit, usage, and in memory.stat the files that are in memory and idle.
FIRST_VERSION = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
SECOND_VERSION = ("memory.max", "memory.current", "inactive_file")
# Parameters of mallopt(3): blocks from this size on are mapped one by one; so much freed memory may be kept.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES, KEPT_BYTES = 4 * 2**20, 32 * 2**20


def free_bytes() -> int:
    """Return the memory that is free on this machine, or within the limits of its container and what that is in."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    own = GROUPS_FILE.read_text() if GROUPS_FILE.exists() else ""
    for folder, names in list_groups(own, CGROUP):
        # A group without a limit says so in words, and the groups of other containers cannot be read.
        with contextlib.suppress(OSError, ValueError, KeyError):
            free = min(free, free_in_group(folder, *names))
    return max(0, free)


def list_groups(own: str, root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """List the control groups of a process below `root`, its own first, with the names of what they tell.

    `own`: the text of /proc/self/cgroup.
    """
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "memory" if controllers else root
        # In a container the path may be the host's, of which only the mount exists.
        group = mount / path.strip("/")
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(mount))):
            yield folder, FIRST_VERSION if controllers else SECOND_VERSION


def free_in_group(folder: Path, limit: str, usage: str, droppable: str) -> int:
    """Return the memory that a control group may still take: pages of files that the kernel can drop count as free.

    Raises: OSError, ValueError, KeyError if it has no limit, or tells less than that.
    """
    statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    used = int((folder / usage).read_text()) - int(statistics[droppable])
    return int((folder / limit).read_text()) - used


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
