"""How far the work on a video is, and where its seconds go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

ItemT = TypeVar("ItemT")

Advance = Callable[[int], object]
"""Called with the number of frames that were done; what it raises ends the work."""


class StageSeconds:
    """The seconds of stages that overlap, by their names; they may add up to more than passed. Threads may share it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, other: Mapping[str, float]) -> None:
        """Add the seconds of stages."""
        with self._lock:
            for name, seconds in other.items():
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the seconds of a block to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add({stage: time.perf_counter() - started})

    def measure_each(self, stage: str, items: Iterable[ItemT]) -> Iterator[ItemT]:
        """Yield items; add the seconds that each takes to come."""
        iterator = iter(items)
        while True:
            with self.measure(stage):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item
