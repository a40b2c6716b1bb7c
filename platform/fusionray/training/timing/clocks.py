"""Two clocks of one shape: the host's, and the time line of a GPU's stream, which is read without waiting for it."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch


class HostClock:
    """Moments are seconds of the host's monotonic clock."""

    now = staticmethod(time.perf_counter)

    def is_past(self, moment: float, *, wait: bool) -> bool:
        """Tell that every moment that was taken has passed."""
        del moment, wait
        return True

    def between(self, start: float, stop: float) -> float:
        """Return seconds."""
        return stop - start

    def give_back(self, moments: Iterable[float]) -> None:
        """Keep nothing: a number needs no pool."""


class StreamClock:
    """Moments are events on the current stream of a GPU; they are used again, since making one is not free."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool: list[torch.cuda.Event] = []

    def now(self) -> torch.cuda.Event:
        """Record an event on the stream that the calling thread works on."""
        try:
            event = self.pool.pop()
        except IndexError:  # asking first would race with the hooks of the backward pass, which run on its threads
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def is_past(self, moment: torch.cuda.Event, *, wait: bool) -> bool:
        """Tell whether the device has come as far as this event; with `wait`, let it."""
        if wait:
            moment.synchronize()
        return bool(moment.query())  # type: ignore[no-untyped-call]

    def between(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """Return seconds."""
        # A span on another stream may end behind the last cut of its step.
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    def give_back(self, moments: Iterable[torch.cuda.Event]) -> None:
        """Return events to the pool."""
        self.pool.extend(moments)
