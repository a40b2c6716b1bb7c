"""The processes of this machine, as Linux lists them in /proc: which of them belong to something that was started."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROC = Path("/proc")


def read_parents() -> dict[int, int]:
    """Read the parent of every process."""
    parents = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            # Those that end meanwhile are left out.
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents[int(entry.name)] = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
    return parents


def list_descendants(pid: int) -> list[int]:
    """List the processes that a process started, and those that they did, the eldest first."""
    parents = read_parents()
    found, generation = [], [pid]
    while generation:
        generation = [child for child, parent in parents.items() if parent in generation]
        found += generation
    return found


def find_processes(needle: str, *, variable: str | None = None) -> list[int]:
    """Find processes of ours whose command line holds `needle`, and whose environment holds `variable` (NAME=value)."""
    found = []
    for pid in read_parents():
        folder = PROC / str(pid)
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid() or needle.encode() not in folder.joinpath("cmdline").read_bytes():
                continue
            if variable is None or variable.encode() in folder.joinpath("environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has asked for its status yet does not."""
    with contextlib.suppress(OSError, IndexError):
        return PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
