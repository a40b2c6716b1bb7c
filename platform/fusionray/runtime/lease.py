"""A lock file on storage that several machines share: one holder at a time, and a dead holder does not block others.

The file names its holder. A holder on this machine is dead if its process is; one elsewhere if its heartbeat, the time
of the file, has not moved for some seconds by the clock of whoever waits, so that clocks of machines need not agree.
Two waiters that give up the same holder at the same instant may in theory both go on: what is done under a lease must
stay right if it is done twice, only dearer.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from fusionray.ops.processes import PROC

BEATS = 4


@dataclass(frozen=True)
class Holder:
    """Who holds a lease. `machine` is a boot and a process namespace: only within these a pid says anything."""

    token: str
    host: str
    machine: str
    pid: int
    started: str


class Lease:
    """Take, keep alive and give back a lock file. As a context manager it gives back what was acquired.

    Raises: OSError where the file cannot be written.
    """

    def __init__(self, path: Path, stale_seconds: float) -> None:
        self.path = path
        self.stale_seconds = stale_seconds
        self.mine: Holder | None = None
        self.descriptor = -1
        self.released = threading.Event()
        self.seen: tuple[str, int] | None = None
        self.seen_since = 0.0

    def acquire(self) -> bool:
        """Take the lease if nobody holds it, or if its holder is dead; never waits."""
        if self.create():
            return True
        if not self.is_stale():
            return False
        self.evict()
        return self.create()

    def create(self) -> bool:
        pid = os.getpid()
        holder = Holder(uuid.uuid4().hex, os.uname().nodename, this_machine(), pid, started_at(pid))
        try:
            # Creating exclusively is atomic on local disks and on NFS from version 3 on.
            self.descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(self.descriptor, json.dumps(asdict(holder)).encode())
            os.fsync(self.descriptor)
        except OSError:
            os.close(self.descriptor)
            self.path.unlink(missing_ok=True)
            raise
        self.mine = holder
        self.released.clear()
        # A descriptor of its own: the number of one that is closed meanwhile may soon be that of another file.
        kept = os.dup(self.descriptor)
        threading.Thread(target=self.beat, args=(kept,), name="lease", daemon=True).start()
        return True

    def beat(self, descriptor: int) -> None:
        try:
            while not self.released.wait(self.stale_seconds / BEATS):
                # By descriptor: if another has taken over, its file is not ours to keep alive.
                with contextlib.suppress(OSError):
                    os.utime(descriptor)
        finally:
            os.close(descriptor)

    def is_stale(self) -> bool:
        """Tell whether the holder is dead; of one on another machine this can be told only after `stale_seconds`."""
        try:
            holder, beat = read_holder(self.path), self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        token = holder.token if holder else ""
        if self.seen is None or self.seen != (token, beat):
            self.seen, self.seen_since = (token, beat), time.monotonic()
        # Building may hold back every thread of a process: of one that can be asked for, the heartbeat proves nothing.
        if holder and holder.machine == this_machine():
            return started_at(holder.pid) != holder.started
        return time.monotonic() - self.seen_since > self.stale_seconds

    def evict(self) -> None:
        """Remove the lock file of the dead holder last seen, whoever of several waiters comes first."""
        aside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}.stale")
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return
        holder = read_holder(aside)
        # Another waiter was faster and this is its own, living lease: put it back.
        if self.seen is None or (holder.token if holder else "") != self.seen[0]:
            with contextlib.suppress(OSError):
                os.link(aside, self.path)
        aside.unlink(missing_ok=True)

    def release(self) -> None:
        """Give the lease back, unless another has taken it over."""
        if self.mine is None:
            return
        self.released.set()
        os.close(self.descriptor)
        holder = read_holder(self.path)
        if holder and holder.token == self.mine.token:
            self.path.unlink(missing_ok=True)
        self.mine = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def read_holder(path: Path) -> Holder | None:
    """Read who holds a lease; None if that is not written yet, or nobody holds it."""
    try:
        return Holder(**json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def this_machine() -> str:
    boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{os.readlink(PROC / 'self/ns/pid')}"


def started_at(pid: int) -> str:
    """Tell when a process started, so that another one with its number is not taken for it; empty if it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *fields = text.rpartition(")")[2].split()
    # A zombie will do nothing more. Field 22 of proc(5), of which two stand before the state.
    return "" if state in "ZX" else fields[18]
