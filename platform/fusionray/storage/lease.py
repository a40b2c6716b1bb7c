"""A lease: of all who want to do a piece of work in a shared folder, one at a time may, for as long as it lives.

    folder/NAME-000001   the first taking: its content names the holder, its modification time is the heartbeat
    folder/NAME-000002   the next, and so on: the highest number holds, until "given back" is the last line of its file

Whoever takes creates the file of the next number, which only one can. A holder whose process has died on this machine
is taken over at once. One elsewhere, in another container too, is given up when its heartbeat has not changed for a
while of the watcher's own clock: no clocks are compared, and a watcher that has just begun waits that long. One whose
name cannot be read, because it died before it signed or the disk was full, counts as elsewhere.

In a folder numbers are never used twice and their files stay, or a slow watcher could take what it believes free. The
folder goes with the work; or, with `owns_folder`, it comes with the first taking and goes when the lease is given back:

- To remove it the holder of n takes n + 1 as well. Either a watcher that gave the holder up has that number, and then
  the folder is the watcher's; or none can get it any more, and whoever looks now sees a holder that has just come.
- Then the folder is renamed with all its files, and only after that emptied: at its place no number is ever free again.
  A new folder may come there at once and begins at 1.
- A slow watcher creates its number in the very folder into which it looked, by descriptor, so never in the new one; and
  it holds only if that folder is still at its place then. In the renamed one it may find a number free, never hold it.
- Who is killed in between leaves the number of a dead holder, or a renamed folder into which nobody looks.

Assumed of the file system: exclusive creation and renaming are atomic, and opening a file asks for its present times
and content (NFS 3 and later do). A holder that stood still for the time-out and wakes up may go on until its next
heartbeat shows it that it lost, and if it stood between taking n + 1 and renaming, the next holder loses its folder:
what is done under a lease must not be harmed by being done twice, only be dearer.
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
from fusionray.hardware.processes import ProcessName, name_this_process
from fusionray.storage.private_files import FILE_MODE

DIGITS = 6
BEATS_PER_TIMEOUT = 4
GIVEN_BACK = b"given back\n"
# The second is how NFS tells of a folder that another machine removed.
GONE_ERRORS = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True)
class LeaseState:
    """What a watcher saw: the highest number, its heartbeat, whether somebody holds it, and who if that can be read."""

    number: int = 0
    beat_ns: int = 0
    is_held: bool = False
    holder: ProcessName | None = None


class Lease:
    """One participant's view of a lease. Watching needs the same object: it remembers when a heartbeat changed.

    With `trust_living` a holder that lives on this machine keeps the lease however long its heartbeat stands still: for
    work that may hold back every thread of its process, and is dear to do twice. Without, the heartbeat counts even
    then: for work that somebody waits for, of a holder that may hang. Elsewhere the heartbeat always decides.
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
        """Take the lease if it is free, or its holder is dead or has shown no sign of life for the time-out.

        With `patient` a dead holder too is given the time-out: for work that may have killed it.
        Raises: FileNotFoundError if the folder is gone; with `owns_folder`, the one in which it lies.
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
            # The lease was given back a moment ago.
            return False

    def take(self, patient: bool) -> bool:
        now = self.clock()
        with open_folder(self.folder) as place:
            sight = self.look_into(place)
            if sight.is_held and not self.is_given_up(sight, now, patient):
                return False
            try:
                signature = self.sign(place, sight.number + 1)
            except FileExistsError:
                return False
            if not is_at(self.folder, place):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.file_name(sight.number + 1), dir_fd=place)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder))
        self.number, self.signature, self.renewed_at = sight.number + 1, signature, now
        return True

    def is_given_up(self, sight: LeaseState, now: float, patient: bool) -> bool:
        """Tell whether to take from the holder that was seen in a look that began `now`."""
        is_new = sight != self.seen
        if is_new:
            # After the look: had this process stood still during it, the time before would make the sight look old.
            self.seen, self.seen_at = sight, self.clock()
        life = sight.holder.life() if sight.holder else "unknown"
        if life == "dead" and not patient:
            return True
        if life == "alive" and self.trust_living:
            return False
        return not is_new and now - self.seen_at >= self.timeout_seconds

    def sign(self, place: int, number: int) -> bytes:
        """Create the file of a number, and give what could be written into it.

        Raises: FileExistsError if another has the number.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(self.file_name(number), flags, self.file_mode, dir_fd=place)
        told = {"token": uuid.uuid4().hex, **asdict(name_this_process())}
        signature, written = json.dumps(told).encode() + b"\n", 0
        # A file needs no room on a full disk, its content does: there, too, a job must be taken in order to end it.
        with contextlib.suppress(OSError), os.fdopen(descriptor, "wb", buffering=0) as file:
            written = file.write(signature)
        return signature[:written]

    def renew(self) -> bool:
        """Give a sign of life; tell whether the lease is still held here."""
        now, number = self.clock(), self.number
        # By its content: a folder that comes after this one has the same numbers.
        with contextlib.suppress(FileNotFoundError):
            if number and self.highest() == number and self.path(number).read_bytes() == self.signature:
                os.utime(self.path(number))
                self.renewed_at = now
                return True
        self.number = 0
        return False

    @property
    def is_held(self) -> bool:
        """Tell whether the lease is held here, as far as is known without asking the disk."""
        return self.number > 0 and self.clock() - self.renewed_at < self.timeout_seconds

    def give_back(self) -> None:
        """Let the next one take the lease at once; nothing happens if it is lost, or the folder is gone."""
        number, self.number = self.number, 0
        if number:
            with contextlib.suppress(FileNotFoundError):
                if self.owns_folder:
                    self.remove_folder(number)
                else:
                    with os.fdopen(os.open(self.path(number), os.O_WRONLY | os.O_APPEND), "ab") as file:
                        file.write(GIVEN_BACK)

    def remove_folder(self, number: int) -> None:
        """Remove the folder of the number that is held, unless another has taken over; see the top of this file."""
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
    def kept(self) -> Iterator[Lease]:
        """Renew a lease that was taken in a thread beside the block, and give it back after."""
        with run_in_background(self.beat, "lease"):
            try:
                yield self
            finally:
                self.give_back()

    def beat(self, stop: threading.Event) -> None:
        """Renew until told to stop, or until the lease is lost."""
        while not stop.wait(self.timeout_seconds / BEATS_PER_TIMEOUT):
            # A file server that is away for a moment is no loss; `is_held` ends when it is away for too long.
            with contextlib.suppress(OSError):
                if not self.renew():
                    return

    def look(self) -> LeaseState:
        """Look who holds the lease."""
        with open_folder(self.folder) as place:
            return self.look_into(place)

    def look_into(self, place: int) -> LeaseState:
        """Look who holds the lease in an open folder."""
        number = max(self.numbers(place), default=0)
        if number == 0:
            return LeaseState()
        content, beat_ns = self.read(place, number)
        is_held = not content.endswith(GIVEN_BACK)
        return LeaseState(number, beat_ns, is_held, read_holder(content) if is_held else None)

    def highest(self) -> int:
        """Find the highest number that was ever taken; 0 if there is none."""
        return max(self.numbers(self.folder), default=0)

    def count_lost(self) -> int:
        """Count the holders but this one that did not give the lease back: all before the highest have lost it."""
        others = [number for number in self.numbers(self.folder) if number != self.number]
        return sum(not self.path(number).read_bytes().endswith(GIVEN_BACK) for number in others)

    def numbers(self, place: int | Path) -> list[int]:
        """List the numbers that were ever taken."""
        found = (self.pattern.fullmatch(name) for name in os.listdir(place))
        return [int(match[1]) for match in found if match]

    def read(self, place: int, number: int) -> tuple[bytes, int]:
        """Read the content of a number's file, and its heartbeat."""
        with os.fdopen(os.open(self.file_name(number), os.O_RDONLY, dir_fd=place), "rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns

    def path(self, number: int) -> Path:
        return self.folder / self.file_name(number)

    def file_name(self, number: int) -> str:
        return f"{self.name}-{number:0{DIGITS}d}"


def read_holder(content: bytes) -> ProcessName | None:
    """Read who signed; None if nobody has, or only half."""
    try:
        told = json.loads(content)
        return ProcessName(str(told["host"]), str(told["machine"]), int(told["pid"]), str(told["started"]))
    except (ValueError, TypeError, KeyError):
        return None


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Open a folder, which then is this one whatever takes its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_at(path: Path, descriptor: int) -> bool:
    """Tell whether what is open is what lies at a path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
