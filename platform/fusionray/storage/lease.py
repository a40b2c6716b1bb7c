"""A lease on a piece of work in a shared folder: at most one living process holds it at a time.

    folder/NAME-000001   the first lease: its content is the key of the holder, its modification time is the heartbeat
    folder/NAME-000002   the next one, and so on: the highest number is held until its file ends in "released"

To take the lease, a process creates the file of the next number, which only one process can do. If the holder's process
has died on the same machine, a watcher takes over at once. If the holder is on another machine or in another container,
the watcher waits until the heartbeat has not changed for the timeout by the watcher's own clock: no clocks are
compared, and a new watcher waits for the whole timeout. A holder whose key cannot be read, because it died before it
wrote the key or because the disk was full, counts as one on another machine.

The numbers in a folder are never used twice and their files stay; otherwise a slow watcher could take a number that it
wrongly believes free. The folder is removed together with the work; or, with `owns_folder`, the first holder creates it
and the release removes it:

- To remove the folder, the holder of n also creates n + 1. If a watcher that gave the holder up has that number, the
  folder belongs to the watcher. Otherwise no watcher can get the number, and each of them sees a new holder.
- Then the holder renames the folder with all its files, and empties it only after that: at the old path no number is
  ever free again. A new folder may appear there at once, and begins at 1.
- A slow watcher creates its number by descriptor in the folder that it looked into, so never in the new one; and it
  holds the lease only if that folder is still at its path. In the renamed folder it may find a number free, but it
  never holds the lease.
- A process that is killed in between leaves the number of a dead holder, or a renamed folder that nobody reads.

The file system must create files exclusively and rename atomically, and `open` must fetch the current times and content
of a file, as it does on NFS 3 and later. A holder that was suspended for the timeout may continue until its next
heartbeat shows that it lost the lease. If it was suspended between creating n + 1 and renaming, the next holder loses
its folder. So work under a lease must be harmless to do twice, and may only cost more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fusionray.background import run_in_background
from fusionray.hardware.processes import ProcessKey, current_process_key
from fusionray.storage.atomic_files import FILE_MODE

DIGITS = 6
BEATS_PER_TIMEOUT = 4
RELEASED = b"released\n"
# NFS reports ESTALE for a folder that another machine removed.
GONE_ERRORS = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True)
class LeaseState:
    """What a watcher read: the highest number, its heartbeat, whether it is held, and the holder if it is readable."""

    number: int = 0
    beat_ns: int = 0
    is_held: bool = False
    holder: ProcessKey | None = None


class Lease:
    """One process's view of a lease. A watcher must reuse its object, which remembers when a heartbeat changed.

    With `trust_living`, a living holder on this machine keeps the lease even if its heartbeat stops: for work that may
    block every thread of its process and is expensive to repeat. Without it, the heartbeat decides: for work that
    a client waits for and whose holder may hang. On other machines the heartbeat always decides.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "lease",
        *,
        timeout_seconds: float,
        trust_living: bool = False,
        owns_folder: bool = False,
        file_mode: int = FILE_MODE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.pattern = re.compile(rf"{re.escape(name)}-(\d{{{DIGITS}}})")
        self.name = name
        self.timeout_seconds = timeout_seconds
        self.trust_living = trust_living
        self.owns_folder = owns_folder
        self.file_mode = file_mode
        self.clock = clock
        self.seen = LeaseState()
        self.seen_at = clock()
        self.number = 0
        self.signature = b""
        self.renewed_at = float("-inf")

    def try_take(self, *, patient: bool = False) -> bool:
        """Take the lease if it is free, or if its holder is dead or its heartbeat has stopped for the timeout.

        With `patient`, also a dead holder keeps the lease for the timeout: for work that may have killed it.
        Raises: FileNotFoundError if the folder does not exist; with `owns_folder`, its parent.
        """
        if not self.owns_folder:
            return self.take(patient)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.folder)
        try:
            return self.take(patient)
        except OSError as error:
            if error.errno not in GONE_ERRORS:
                raise
            # The lease was released a moment ago.
            return False

    def take(self, patient: bool) -> bool:
        now = self.clock()
        with open_folder(self.folder) as place:
            state = self.read_state_in(place)
            if state.is_held and not self.is_given_up(state, now, patient):
                return False
            try:
                signature = self.sign(place, state.number + 1)
            except FileExistsError:
                return False
            if not is_at(self.folder, place):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.file_name(state.number + 1), dir_fd=place)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder))
        self.number, self.signature, self.renewed_at = state.number + 1, signature, now
        return True

    def is_given_up(self, state: LeaseState, now: float, patient: bool) -> bool:
        """Tell whether to take over from the holder in a state that was read from `now` on."""
        is_new = state != self.seen
        if is_new:
            # Take the time after the read: if this process was suspended during it, `now` would make the state too old.
            self.seen, self.seen_at = state, self.clock()
        liveness = state.holder.liveness() if state.holder else "unknown"
        if liveness == "dead" and not patient:
            return True
        if liveness == "alive" and self.trust_living:
            return False
        return not is_new and now - self.seen_at >= self.timeout_seconds

    def sign(self, place: int, number: int) -> bytes:
        """Create the file of a number; return the content that could be written.

        Raises: FileExistsError if another process has the number.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(self.file_name(number), flags, self.file_mode, dir_fd=place)
        fields = {"token": uuid.uuid4().hex, **asdict(current_process_key())}
        signature, written = json.dumps(fields).encode() + b"\n", 0
        # On a full disk an empty file can still be created: a process must be able to take a job in order to end it.
        with contextlib.suppress(OSError), os.fdopen(descriptor, "wb", buffering=0) as file:
            written = file.write(signature)
        return signature[:written]

    def renew(self) -> bool:
        """Write a heartbeat; return whether this process still holds the lease."""
        now, number = self.clock(), self.number
        # Compare the content, because a new folder at the same path has the same numbers.
        with contextlib.suppress(FileNotFoundError):
            if number and self.highest() == number and self.path(number).read_bytes() == self.signature:
                os.utime(self.path(number))
                self.renewed_at = now
                return True
        self.number = 0
        return False

    @property
    def is_held(self) -> bool:
        """Tell whether this process holds the lease, from the last heartbeat, without reading the disk."""
        return self.number > 0 and self.clock() - self.renewed_at < self.timeout_seconds

    def release(self) -> None:
        """Let another process take the lease at once; does nothing if the lease is lost or the folder is gone."""
        number, self.number = self.number, 0
        if number:
            with contextlib.suppress(FileNotFoundError):
                if self.owns_folder:
                    self.remove_folder(number)
                else:
                    with os.fdopen(os.open(self.path(number), os.O_WRONLY | os.O_APPEND), "ab") as file:
                        file.write(RELEASED)

    def remove_folder(self, number: int) -> None:
        """Remove the folder of the held number, unless another process has taken over; see the top of this file."""
        aside = self.folder.with_name(f".{self.folder.name}.{uuid.uuid4().hex}.gone")
        with open_folder(self.folder) as place:
            if self.read(place, number)[0] != self.signature:
                return
            try:
                self.sign(place, number + 1)
            except FileExistsError:
                return
            os.rename(self.folder, aside)
        shutil.rmtree(aside, ignore_errors=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[Lease]:
        """Renew a taken lease in a background thread during the block, then release it."""
        with run_in_background(self.beat, "lease"):
            try:
                yield self
            finally:
                self.release()

    def beat(self, stop: threading.Event) -> None:
        """Renew until `stop` is set or the lease is lost."""
        while not stop.wait(self.timeout_seconds / BEATS_PER_TIMEOUT):
            # A file server may be away for a moment; `is_held` becomes false when it is away for too long.
            with contextlib.suppress(OSError):
                if not self.renew():
                    return

    def read_state(self) -> LeaseState:
        """Read who holds the lease."""
        with open_folder(self.folder) as place:
            return self.read_state_in(place)

    def read_state_in(self, place: int) -> LeaseState:
        """Read who holds the lease in an open folder."""
        number = max(self.numbers(place), default=0)
        if number == 0:
            return LeaseState()
        content, beat_ns = self.read(place, number)
        is_held = not content.endswith(RELEASED)
        return LeaseState(number, beat_ns, is_held, read_holder(content) if is_held else None)

    def highest(self) -> int:
        """Return the highest number that was ever taken; 0 if there is none."""
        return max(self.numbers(self.folder), default=0)

    def count_lost(self) -> int:
        """Count the other holders that did not release the lease: all numbers below the highest are lost."""
        others = [number for number in self.numbers(self.folder) if number != self.number]
        return sum(not self.path(number).read_bytes().endswith(RELEASED) for number in others)

    def numbers(self, place: int | Path) -> list[int]:
        """List the numbers that were ever taken."""
        found = (self.pattern.fullmatch(name) for name in os.listdir(place))
        return [int(match[1]) for match in found if match]

    def read(self, place: int, number: int) -> tuple[bytes, int]:
        """Read the content of a number's file and its heartbeat (ns since 1970)."""
        with os.fdopen(os.open(self.file_name(number), os.O_RDONLY, dir_fd=place), "rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns

    def path(self, number: int) -> Path:
        return self.folder / self.file_name(number)

    def file_name(self, number: int) -> str:
        return f"{self.name}-{number:0{DIGITS}d}"


def read_holder(content: bytes) -> ProcessKey | None:
    """Read the holder of a lease; None if its key is missing or incomplete."""
    try:
        fields = json.loads(content)
        return ProcessKey(str(fields["host"]), str(fields["machine"]), int(fields["pid"]), str(fields["started"]))
    except (ValueError, TypeError, KeyError):
        return None


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open a folder; the descriptor stays the same folder even if another one takes its path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_at(path: Path, descriptor: int) -> bool:
    """Tell whether the open folder is the one at a path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
