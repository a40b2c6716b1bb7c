"""Processes of this machine, from /proc: which one started which, and whether a process is still alive."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PROC = Path("/proc")
# PID_MAX_LIMIT of Linux.
MAX_PID = 2**22

Life = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True)
class Process:
    """The parent of a process, and the leader of its session."""

    """What the kernel says of a process: who started it, and the leader of its session."""

    parent: int
    session: int


@dataclass(frozen=True)
class ProcessName:
    """A name that no other process ever has. A pid is valid only within `machine`: a boot and a pid namespace."""

    host: str
    machine: str
    pid: int
    started: str

    def life(self) -> Life:
        """Tell whether the process is alive; unknown on another machine or in another container, or without /proc."""
        if not self.machine or self.machine != find_machine() or not 0 < self.pid <= MAX_PID:
            return "unknown"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "dead"
        except PermissionError:
            pass
        try:
            return "alive" if started_at(self.pid) == self.started else "dead"
        except OSError:
            # A /proc mounted with hidepid shows no processes of other users.
            return "unknown"


def measure_cpu(pids: Collection[int]) -> float:
    """Sum the CPU seconds that processes have used so far; ended processes count nothing."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            # The fields follow the name, which may contain spaces and parentheses. Source: proc(5), fields 14 and 15.
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def name_this_process() -> ProcessName:
    """Name the calling process. Without /proc the name is readable, but `life` cannot use it."""
    pid = os.getpid()
    try:
        machine, started = find_machine(), started_at(pid)
    except OSError:
        machine, started = "", ""
    return ProcessName(os.uname().nodename, machine, pid, started)


def find_machine() -> str:
    """Name the boot and the pid namespace of the calling process; empty if they cannot be read."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def started_at(pid: int) -> str:
    """Return when a process started, which tells it from a later process with the same pid; empty for a zombie.

    Raises: OSError if the process has ended or is hidden.
    """
    text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    state, *fields = text.rpartition(")")[2].split()
    # Field 22 of proc(5); the pid, the name and the state come before `fields`.
    return "" if state in "ZX" else fields[18]


def list_processes() -> dict[int, Process]:
    """List all living processes by pid."""
    found = {}
    for path in PROC.glob("[0-9]*/stat"):
        # A process may end between the listing and the read.
        with contextlib.suppress(OSError):
            # The name is in parentheses and may contain some; state, parent, group and session follow it.
            state, parent, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if state not in "ZX":
                found[int(path.parent.name)] = Process(int(parent), int(session))
    return found


def add_descendants(pids: Collection[int], processes: dict[int, Process]) -> set[int]:
    """Add to some processes all their descendants."""
    found = set(pids)
    while more := {pid for pid, process in processes.items() if process.parent in found} - found:
        found |= more
    return found


def find_processes(needle: str = "", *, variable: str | None = None) -> list[int]:
    """Find this user's processes whose command line contains `needle` and whose environment `variable` (NAME=value)."""
    found = []
    for pid in list_processes():
        folder = PROC / str(pid)
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid() or needle.encode() not in folder.joinpath("cmdline").read_bytes():
                continue
            if variable is None or variable.encode() in folder.joinpath("environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found
