"""Progress of work that runs elsewhere on the cluster, shown as a bar where the user sits."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from tqdm import tqdm

POLL_SECONDS = 0.5


@ray.remote(num_cpus=0)
class BoardActor:
    """Remember the latest position."""

    def __init__(self) -> None:
        self.position = 0
        self.notes: dict[str, float] = {}
        self.lines: list[str] = []

    def put(self, position: int, notes: dict[str, float]) -> None:
        self.position = position
        self.notes = notes

    def add(self, line: str) -> None:
        self.lines.append(line)

    def take(self) -> tuple[int, dict[str, float], list[str]]:
        lines, self.lines = self.lines, []
        return self.position, self.notes, lines


class ProgressBoard:
    """A handle that workers write to and the driver reads from."""

    def __init__(self) -> None:
        self.actor: Any = BoardActor.remote()  # type: ignore[attr-defined]

    def advance(self, position: int, notes: Mapping[str, float]) -> None:
        """Tell how far the work is; never waits."""
        self.actor.put.remote(position, dict(notes))

    def say(self, line: str) -> None:
        """Send a line to the user, above the bar; never waits."""
        self.actor.add.remote(line)

    @contextlib.contextmanager
    def shown(self, title: str, total: int, unit: str) -> Iterator[None]:
        """Draw the bar while the block runs."""
        stop = threading.Event()

        def draw() -> None:
            with tqdm(total=total, desc=title, unit=unit, smoothing=0.05, mininterval=POLL_SECONDS) as bar:
                while not stop.wait(POLL_SECONDS):
                    self.update(bar)
                self.update(bar)

        thread = threading.Thread(target=draw, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=10)
            ray.kill(self.actor)

    def update(self, bar: tqdm[Any]) -> None:
        # The board is a convenience: work goes on where its node was lost.
        with contextlib.suppress(ray.exceptions.RayError):
            position, notes, lines = ray.get(self.actor.take.remote(), timeout=5)
            for line in lines:
                tqdm.write(line, file=sys.stderr)
            if position > bar.n:
                bar.set_postfix({name: f"{value:.3g}" for name, value in list(notes.items())[:4]}, refresh=False)
                bar.update(min(position, bar.total) - bar.n)
