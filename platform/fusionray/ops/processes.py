"""The processes of this machine, as Linux lists them in /proc: which of them belong to something that was started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """What the kernel says of a process: who started it, and the leader of its session."""

    parent: int
    session: int


def list_processes() -> dict[int, Process]:
    """List all living processes by pid."""
    found = {}
    for path in PROC.glob("[0-9]*/stat"):
        # Between the listing and the reading a process may end.
        with contextlib.suppress(OSError):
            # A process's name stands in parentheses and may hold some; behind them: state, parent, group, session.
            state, parent, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if state not in "ZX":
                found[int(path.parent.name)] = Process(int(parent), int(session))
    return found


def add_descendants(pids: Collection[int], processes: dict[int, Process]) -> set[int]:
    """Add to some processes all that they started, and that those did."""
    found = set(pids)
    while more := {pid for pid, process in processes.items() if process.parent in found} - found:
        found |= more
    return found


def find_processes(needle: str = "", *, variable: str | None = None) -> list[int]:
    """Find processes of ours whose command line holds `needle`, and whose environment holds `variable` (NAME=value)."""
    found = []
    for pid in list_processes():
        folder = PROC / str(pid)
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid() or needle.encode() not in folder.joinpath("cmdline").read_bytes():
                continue
            if variable is None or variable.encode() in folder.joinpath("environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found
