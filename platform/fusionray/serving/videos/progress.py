"""How far the work on a film is: written about once a second, for whoever asks for the job."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fusionray.errors import VideoRejected
from fusionray.serving.jobs.films import FilmFolder, FilmProgress, FilmStage
from fusionray.video.stages import Advance

WRITE_SECONDS = 1.0
# The speed is that of the last so many seconds: a stage begins slowly, and scenes differ.
SPEED_SECONDS = 20.0
# The names that `VideoRun` gives to its stages.
STAGES: dict[str, FilmStage] = {
    "find faces": "finding",
    "fuse": "fusing",
    "measure frames": "measuring",
    "paint": "painting",
}
# After these, segments are joined.
LAST_STAGES = ("fusing", "painting")


class Withdrawn(Exception):
    """The order of a film was withdrawn."""


class ProgressWriter:
    """Count the frames of a stage, from several threads, and end the work once `stop` is set.

    Raises: VideoRejected ("too_long") for a film of more frames than `max_frames`, whatever its header says.
    """

    def __init__(
        self,
        film: FilmFolder,
        stop: threading.Event,
        max_frames: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.film = film
        self.stop = stop
        self.max_frames = max_frames
        self.clock = clock
        self.lock = threading.Lock()
        self.written_at = float("-inf")
        self.stage: FilmStage = "reading"
        self.total: int | None = None
        self.done = 0
        # Times at which frames were done, and how many were by then.
        self.past: deque[tuple[float, int]] = deque()

    @contextmanager
    def __call__(self, stage: str, total: int, done: int) -> Iterator[Advance]:
        """Enter a stage of `VideoRun`; after the last one, its segments are joined."""
        if total > self.max_frames:
            raise too_long(total, self.max_frames)
        self.enter(STAGES[stage], total, done)
        yield self.advance
        if self.stage in LAST_STAGES:
            self.enter("joining", total, total)

    def enter(self, stage: FilmStage, total: int | None = None, done: int = 0) -> None:
        """Enter a stage."""
        with self.lock:
            self.stage, self.total, self.done = stage, total, done
            self.past = deque([(self.clock(), done)])
            self.write()

    def advance(self, count: int) -> None:
        """Count frames.

        Raises: Withdrawn.
        """
        self.check()
        with self.lock:
            self.done += count
            now = self.clock()
            if now - self.written_at >= WRITE_SECONDS:
                self.past.append((now, self.done))
                while len(self.past) > 2 and now - self.past[1][0] >= SPEED_SECONDS:
                    self.past.popleft()
                self.write()

    def check(self) -> None:
        """Leave if the order is withdrawn.

        Raises: Withdrawn.
        """
        if self.stop.is_set():
            raise Withdrawn

    def write(self) -> None:
        """Write the state; the lock is held."""
        self.written_at = self.clock()
        (since, before), (now, done) = self.past[0], self.past[-1]
        speed = round((done - before) / (now - since), 2) if now > since and done > before else None
        left = round(max(0, self.total - self.done) / speed, 1) if speed and self.total is not None else None
        self.film.write_progress(FilmProgress(self.stage, self.done, self.total, speed, left))


def too_long(num_frames: int, max_frames: int) -> VideoRejected:
    """Build the error of a film with too many frames."""
    return VideoRejected("too_long", f"it has {num_frames} frames; {max_frames} are the limit: send it in parts")
