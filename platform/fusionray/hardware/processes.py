"""The processes of this machine, as Linux lists them in /proc: which belong to what, and whether one still lives."""

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
    """What the kernel says of a process: who started it, and the leader of its session."""

    parent: int
    session: int


@dataclass(frozen=True)
class ProcessName:
    """One process of all machines and times. A pid says something only within `machine`: a boot and a pid namespace."""

    host: str
    machine: str
    pid: int
    started: str

    def life(self) -> Life:
        """Tell whether the process lives: unknown if it is of another machine or container, or nothing can be read."""
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
    """Sum up the CPU seconds that processes have used so far; those that are gone count nothing."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            # Behind the name, which may hold blanks and brackets; source: proc(5), fields 14 and 15.
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def name_this_process() -> ProcessName:
    """Name the calling process. Where there is no /proc the name tells people something, but no program."""
    pid = os.getpid()
    try:
        machine, started = find_machine(), started_at(pid)
    except OSError:
        machine, started = "", ""
    return ProcessName(os.uname().nodename, machine, pid, started)


def find_machine() -> str:
    """Name the boot and the pid namespace of the calling process; empty where that cannot be read."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def started_at(pid: int) -> str:
    """Tell when a process started, so that another one with its number is not taken for it; empty for a zombie.

    Raises: OSError if it is gone, or hidden.
    """
    text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    state, *fields = text.rpartition(")")[2].split()
    # Field 22 of proc(5), of which two stand before the state.
    return "" if state in "ZX" else fields[18]


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
