"""Two clocks with one interface: the host's clock, and a GPU stream's time line, read without waiting for it."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch


class HostClock:
    """Moments are seconds of the host's monotonic clock."""

    now = staticmethod(time.perf_counter)

    def is_past(self, moment: float, *, wait: bool) -> bool:
        """Return True: a moment of the host's clock has always passed."""
        del moment, wait
        return True

    def between(self, start: float, stop: float) -> float:
        """Return seconds."""
        return stop - start

    def release(self, moments: Iterable[float]) -> None:
        """Do nothing: numbers need no pool."""


class StreamClock:
    """Moments are events on the current stream of a GPU; a pool reuses them, since creating one is slow."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool: list[torch.cuda.Event] = []

    def now(self) -> torch.cuda.Event:
        """Record an event on the stream that the calling thread works on."""
        try:
            event = self.pool.pop()
        except IndexError:  # a check before `pop` would race with hooks that run on threads of the backward pass
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def is_past(self, moment: torch.cuda.Event, *, wait: bool) -> bool:
        """Return whether the device has reached this event; `wait` until it has."""
        if wait:
            moment.synchronize()
        return bool(moment.query())  # type: ignore[no-untyped-call]

    def between(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """Return seconds."""
        # A span on another stream may end after the last time stamp of its step.
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    def release(self, moments: Iterable[torch.cuda.Event]) -> None:
        """Return events to the pool."""
        self.pool.extend(moments)
