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

Liveness = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True)
class Process:
    """The pids of a process's parent and of the leader of its session."""

    parent: int
    session: int


@dataclass(frozen=True)
class ProcessKey:
    """What identifies one process for ever: host name, boot id and pid namespace (`machine`), pid, and start time in
    clock ticks since boot (`started`).
    """

    host: str
    machine: str
    pid: int
    started: str

    def liveness(self) -> Liveness:
        """Return whether the process is alive.

        Unknown if `machine` is not that of the caller (another boot or container), or if /proc is missing or hides the
        process.
        """
        if not self.machine or self.machine != read_boot_and_pid_namespace() or not 0 < self.pid <= MAX_PID:
            return "unknown"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "dead"
        except PermissionError:
            pass
        try:
            return "alive" if read_start_time(self.pid) == self.started else "dead"
        except OSError:
            # A /proc mounted with hidepid hides the processes of other users.
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


def current_process_key() -> ProcessKey:
    """Return the key of the calling process. Without /proc, it has host and pid only, and its `liveness` is unknown."""
    pid = os.getpid()
    try:
        machine, started = read_boot_and_pid_namespace(), read_start_time(pid)
    except OSError:
        machine, started = "", ""
    return ProcessKey(os.uname().nodename, machine, pid, started)


def read_boot_and_pid_namespace() -> str:
    """Return boot id and pid namespace of the calling process, as "BOOT/NAMESPACE"; empty if they cannot be read."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def read_start_time(pid: int) -> str:
    """Return a process's start time, in clock ticks since boot (field 22 of proc(5)).

    It distinguishes the process from a later one with the same pid. It is empty for a zombie.

    Raises: OSError if the process has ended or is hidden.
    """
    text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    state, *fields = text.rpartition(")")[2].split()
    # Pid, name and state are fields 1 to 3, so `fields` begins with field 4.
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
