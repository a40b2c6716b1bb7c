"""The step timer: how the wall time of each step divides into parts.

The timer takes a time stamp at every change of part, so the parts of a step sum to its wall time. On a GPU the time
stamps are events on its stream, which are read after they have passed: the timer measures the device's time line and
never waits for it. There, `data_wait` is the time in which the device is idle for lack of data.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch

from fusionray.hardware.memory import status_bytes
from fusionray.training.timing.clocks import HostClock, StreamClock
from fusionray.training.timing.report import OTHER, PARTS, StepTimes

# Time that belongs to no step.
PAUSED = "paused"
# Parts in which a rank waits for others: for data, or for the slowest rank.
WAITING = (PAUSED, "data_wait", "communication")
# Of a normal distribution, the distance between the quartiles in standard deviations.
QUARTILES_APART = 1.349
GIB = 2**30


class Span:
    """A part of the step as a context manager; the timer reuses one object per part, to keep the cost low."""

    __slots__ = ("name", "timer")

    def __init__(self, timer: StepTimer, name: str) -> None:
        self.timer = timer
        self.name = name

    def __enter__(self) -> None:
        self.timer.enter(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.timer.leave()


@dataclass
class Step:
    """The time stamps of one step as (time, part that begins there), and the spans that overlap with it."""

    cuts: list[tuple[Any, str]] = field(default_factory=list)
    spans: list[tuple[str, Any, Any]] = field(default_factory=list)
    added: dict[str, float] = field(default_factory=dict)
    images: int = 0


class StepTimer:
    """Measure the steps of one worker; parts may be nested, and time counts for the innermost part."""

    def __init__(self, device: torch.device, *, annotate: bool = False) -> None:
        """Start without steps; `annotate` also marks the parts in a PyTorch profiler's trace."""
        self.device = device
        self.annotate = annotate
        self.clock = StreamClock(device) if device.type == "cuda" else HostClock()
        self.parts = {name: Span(self, name) for name in (*PARTS, PAUSED)}
        self.stack: list[str] = [OTHER]
        self.is_stopped = False
        self.marks: list[Any] = []
        self.lock = threading.Lock()
        self.step = Step([(self.clock.now(), OTHER)])
        self.unread: deque[Step] = deque()
        self.clear()

    def restart(self) -> None:
        """Restart the open step now: earlier time, such as that of the batch-size search, belongs to no step."""
        self.step = Step([(self.clock.now(), self.stack[-1])])

    def clear(self) -> None:
        """Reset the totals."""
        self.seconds = dict.fromkeys((*PARTS, OTHER, PAUSED), 0.0)
        self.overlapped: dict[str, float] = {}
        self.images = 0
        self.num_steps = 0
        self.own_seconds: list[float] = []

    def part(self, name: str) -> Span:
        """Count the time of the block as `name`, one of PARTS."""
        return self.parts[name]

    def paused(self) -> Span:
        """Exclude the time of the block, such as evaluation, previews and saving, from every step."""
        return self.parts[PAUSED]

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Take no time stamps in the block, whose time counts for the part around it."""
        self.is_stopped = True
        try:
            yield
        finally:
            self.is_stopped = False

    def enter(self, name: str) -> None:
        """Start a part inside the present one."""
        if self.is_stopped:
            return
        self.stack.append(name)
        self.step.cuts.append((self.clock.now(), name))
        if self.annotate:
            mark = torch.profiler.record_function(f"step.{name}")
            mark.__enter__()  # type: ignore[no-untyped-call]
            self.marks.append(mark)

    def leave(self) -> None:
        """End the innermost part."""
        if self.is_stopped:
            return
        self.stack.pop()
        self.step.cuts.append((self.clock.now(), self.stack[-1]))
        if self.marks:
            self.marks.pop().__exit__(None, None, None)

    def add(self, name: str, seconds: float) -> None:
        """Add time on another thread or stream that overlaps with the step; it is separate from the parts."""
        with self.lock:
            self.step.added[name] = self.step.added.get(name, 0.0) + seconds

    def overlapped_span(self, name: str) -> Callable[[], None]:
        """Start a span that overlaps with the step, from any thread; the caller calls the returned function at its end.

        Spans of one name that overlap each other, such as the buckets of an exchange, are counted once.
        """
        start = self.clock.now()

        def end() -> None:
            stop = self.clock.now()
            with self.lock:
                self.step.spans.append((name, start, stop))

        return end

    def end_step(self, images: int) -> None:
        """End a step of `images` images (of this worker) and start the next one."""
        now = self.clock.now()
        with self.lock:
            done, self.step = self.step, Step([(now, self.stack[-1])])
        done.cuts.append((now, OTHER))
        done.images = images
        self.unread.append(done)
        self.read(wait=False)

    def read(self, *, wait: bool) -> None:
        """Add up the ended steps whose times are known; `wait` for those that a device has not finished."""
        while self.unread and self.clock.is_past(self.unread[0].cuts[-1][0], wait=wait):
            self.book(self.unread.popleft())

    def book(self, step: Step) -> None:
        """Add the times of an ended step to the totals."""
        origin = step.cuts[0][0]
        times = [self.clock.between(origin, moment) for moment, _ in step.cuts]
        own = 0.0
        for index, (_, name) in enumerate(step.cuts[:-1]):
            self.seconds[name] += times[index + 1] - times[index]
            own += 0.0 if name in WAITING else times[index + 1] - times[index]
        self.own_seconds.append(own)
        for name in {name for name, _, _ in step.spans}:
            spans = [
                (self.clock.between(origin, start), self.clock.between(origin, stop))
                for other, start, stop in step.spans
                if other == name
            ]
            step.added[name] = step.added.get(name, 0.0) + measure_union(spans)
        for name, seconds in step.added.items():
            self.overlapped[name] = self.overlapped.get(name, 0.0) + seconds
        self.images += step.images
        self.num_steps += 1
        # The last time stamp is the first of the next step, which returns it to the pool.
        self.clock.release([moment for moment, _ in step.cuts[:-1]])
        self.clock.release([moment for _, start, stop in step.spans for moment in (start, stop)])

    def take(self) -> StepTimes:
        """Return the means since the last call, and reset the totals.

        Raises: ValueError if no step has ended since.
        """
        self.read(wait=True)
        if not self.num_steps:
            raise ValueError("no step has ended; call end_step() before take()")
        count = self.num_steps
        seconds = {name: value / count for name, value in self.seconds.items() if name != PAUSED}
        total = sum(seconds.values())
        summary = StepTimes(
            num_steps=count,
            step_seconds=total,
            seconds=seconds,
            overlapped={name: value / count for name, value in self.overlapped.items()},
            images_per_second=self.images / max(1e-12, total * count),
            memory_gib=peak_memory_bytes(self.device) / GIB,
            own_spread=measure_spread(self.own_seconds),
        )
        self.clear()
        return summary


def measure_spread(values: Sequence[float]) -> float:
    """Return the standard deviation over the median, from the quartiles; 0 for fewer than four values.

    Rare long steps, such as those with a penalty, are no noise: all ranks take them at the same time.
    """
    if len(values) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / QUARTILES_APART / max(1e-12, middle)


def measure_union(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans (start, stop)."""
    covered, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory in bytes, of tensors on a GPU, else of the process (0 if it is unknown)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError, KeyError):
        return status_bytes("VmHWM")
    return 0
