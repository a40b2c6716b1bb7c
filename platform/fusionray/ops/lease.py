"""A lease: of all who want to do a piece of work in a shared folder, one at a time may, for as long as it lives.

    folder/NAME-000001   the first taking; its modification time is the heartbeat, content means "given back"
    folder/NAME-000002   the next, and so on: the highest number holds

Whoever takes creates the file of the next number, which only one can. No clocks are compared: a holder is given up when
its heartbeat has not changed for a while of the watcher's own clock, so a watcher that has just begun waits that long.
Numbers are never used twice and their files stay, or a slow watcher could take what it believes free; the folder goes
with the work.

Assumed of the file system: exclusive creation is atomic, and opening a file asks for its present times (NFS 3 and later
do both). A holder that stood still and wakes up may go on until its next heartbeat shows it that it lost: what is done
under a lease must not be harmed by being done twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fusionray.ops.beside import beside
from fusionray.ops.private_files import FILE_MODE

DIGITS = 6
BEATS_PER_TIMEOUT = 4
GIVEN_BACK = b"given back\n"


@dataclass(frozen=True)
class Sight:
    """What a watcher saw: the highest number, its heartbeat, and whether somebody holds it."""

    number: int = 0
    beat_ns: int = 0
    is_held: bool = False


class Lease:
    """One participant's view of a lease. Watching needs the same object: it remembers when a heartbeat changed."""

    def __init__(
        self,
        folder: Path,
        name: str = "lease",
        *,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.pattern = re.compile(rf"{re.escape(name)}-(\d{{{DIGITS}}})")
        self.name = name
        self.timeout_seconds = timeout_seconds
        self.clock = clock
        self.seen = Sight()
        self.seen_at = clock()
        self.number = 0
        self.renewed_at = float("-inf")

    def try_take(self) -> bool:
        """Take the lease if it is free, or if its holder has shown no sign of life for the time-out.

        Raises: FileNotFoundError if the folder is gone.
        """
        now, sight = self.clock(), self.look()
        if sight.is_held:
            if sight != self.seen:
                # After the look: had this process stood still during it, the time before would make the sight look old.
                self.seen, self.seen_at = sight, self.clock()
                return False
            if now - self.seen_at < self.timeout_seconds:
                return False
        try:
            os.close(os.open(self.path(sight.number + 1), os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
        except FileExistsError:
            return False
        self.number, self.renewed_at = sight.number + 1, now
        return True

    def renew(self) -> bool:
        """Give a sign of life; tell whether the lease is still held here."""
        now = self.clock()
        with contextlib.suppress(FileNotFoundError):
            if self.number and self.highest() == self.number:
                os.utime(self.path(self.number))
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
            with contextlib.suppress(FileNotFoundError), open(self.path(number), "r+b") as file:
                file.write(GIVEN_BACK)

    @contextlib.contextmanager
    def kept(self) -> Iterator[Lease]:
        """Renew a lease that was taken in a thread beside the block, and give it back after."""
        with beside(self.beat, "lease"):
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

    def look(self) -> Sight:
        """Look who holds the lease."""
        number = self.highest()
        if number == 0:
            return Sight()
        with open(self.path(number), "rb") as file:
            found = os.fstat(file.fileno())
        return Sight(number, found.st_mtime_ns, found.st_size == 0)

    def highest(self) -> int:
        """Find the highest number that was ever taken; 0 if there is none."""
        return max(self.numbers(), default=0)

    def count_lost(self) -> int:
        """Count the earlier holders that did not give the lease back: they died, or stood still for too long."""
        return sum(self.path(number).stat().st_size == 0 for number in self.numbers() if number != self.number)

    def numbers(self) -> list[int]:
        """List the numbers that were ever taken."""
        found = (self.pattern.fullmatch(name) for name in os.listdir(self.folder))
        return [int(match[1]) for match in found if match]

    def path(self, number: int) -> Path:
        return self.folder / f"{self.name}-{number:0{DIGITS}d}"
