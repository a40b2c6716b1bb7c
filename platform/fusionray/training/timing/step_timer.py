"""The time ledger: where the time of each step goes.

The clock of a step is cut at every change of part, so the parts of a step sum to its wall time by construction. On a
GPU the cuts are events on its stream, read when they have passed: what is measured is the device's own time line, and
nothing waits for it. There `data_wait` is the time in which the device stood still for want of data.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch

from fusionray.training.engine.memory import status_bytes
from fusionray.training.timing.clocks import HostClock, StreamClock
from fusionray.training.timing.report import OTHER, PARTS, StepTimes

# Time that is left out of every step.
PAUSED = "paused"
GIB = 2**30


class Span:
    """A part of the step as a context; the ledger keeps one of each, since entering must cost next to nothing."""

    __slots__ = ("ledger", "name")

    def __init__(self, ledger: StepTimer, name: str) -> None:
        self.ledger = ledger
        self.name = name

    def __enter__(self) -> None:
        self.ledger.enter(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.leave()


@dataclass
class Step:
    """The cuts of one step, (time, part that begins there), and the spans that ran beside it."""

    cuts: list[tuple[Any, str]] = field(default_factory=list)
    spans: list[tuple[str, Any, Any]] = field(default_factory=list)
    added: dict[str, float] = field(default_factory=dict)
    images: int = 0


class StepTimer:
    """Keep the time of one worker's steps; parts may be entered inside parts, the inner one counts."""

    def __init__(self, device: torch.device, *, annotate: bool = False) -> None:
        """Begin with an empty ledger; `annotate` also marks the parts in a PyTorch profiler's trace."""
        self.device = device
        self.annotate = annotate
        self.clock = StreamClock(device) if device.type == "cuda" else HostClock()
        self.parts = {name: Span(self, name) for name in (*PARTS, PAUSED)}
        self.stack: list[str] = [OTHER]
        self.marks: list[Any] = []
        self.lock = threading.Lock()
        self.step = Step([(self.clock.now(), OTHER)])
        self.unread: deque[Step] = deque()
        self.clear()

    def restart(self) -> None:
        """Begin the open step now: what came before it, such as the search for a batch size, belongs to none."""
        self.step = Step([(self.clock.now(), self.stack[-1])])

    def clear(self) -> None:
        self.seconds = dict.fromkeys((*PARTS, OTHER, PAUSED), 0.0)
        self.overlapped: dict[str, float] = {}
        self.images = 0
        self.num_steps = 0

    def part(self, name: str) -> Span:
        """Count what happens inside the block as `name`, one of PARTS."""
        return self.parts[name]

    def paused(self) -> Span:
        """Leave out what happens inside the block: evaluation, previews, saving belong to no step."""
        return self.parts[PAUSED]

    def enter(self, name: str) -> None:
        self.stack.append(name)
        self.step.cuts.append((self.clock.now(), name))
        if self.annotate:
            mark = torch.profiler.record_function(f"step.{name}")
            mark.__enter__()  # type: ignore[no-untyped-call]
            self.marks.append(mark)

    def leave(self) -> None:
        self.stack.pop()
        self.step.cuts.append((self.clock.now(), self.stack[-1]))
        if self.marks:
            self.marks.pop().__exit__(None, None, None)

    def add(self, name: str, seconds: float) -> None:
        """Count time that ran beside the step, on another thread or stream; it is kept apart from the parts."""
        with self.lock:
            self.step.added[name] = self.step.added.get(name, 0.0) + seconds

    def beside(self, name: str) -> Callable[[], None]:
        """Begin something that runs beside the step, from any thread; call what is returned when it has ended.

        Spans that overlap each other, as the buckets of one exchange do, are counted once.
        """
        start = self.clock.now()

        def end() -> None:
            stop = self.clock.now()
            with self.lock:
                self.step.spans.append((name, start, stop))

        return end

    def end_step(self, images: int) -> None:
        """Close a step of `images` images (of this worker); the next one begins here."""
        now = self.clock.now()
        with self.lock:
            done, self.step = self.step, Step([(now, self.stack[-1])])
        done.cuts.append((now, OTHER))
        done.images = images
        self.unread.append(done)
        self.read(wait=False)

    def read(self, *, wait: bool) -> None:
        """Book the closed steps whose times are known; `wait` for those that a device has not finished."""
        while self.unread and self.clock.is_past(self.unread[0].cuts[-1][0], wait=wait):
            self.book(self.unread.popleft())

    def book(self, step: Step) -> None:
        origin = step.cuts[0][0]
        times = [self.clock.between(origin, moment) for moment, _ in step.cuts]
        for index, (_, name) in enumerate(step.cuts[:-1]):
            self.seconds[name] += times[index + 1] - times[index]
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
        # The last cut is the first of the next step: it goes back to the pool with that one.
        self.clock.give_back([moment for moment, _ in step.cuts[:-1]])
        self.clock.give_back([moment for _, start, stop in step.spans for moment in (start, stop)])

    def take(self) -> StepTimes:
        """Return the means since the last call and begin anew.

        Raises: ValueError if no step has ended since.
        """
        self.read(wait=True)
        if not self.num_steps:
            raise ValueError("the ledger holds no finished step; call end_step() before take()")
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
        )
        self.clear()
        return summary


def measure_union(spans: Iterable[tuple[float, float]]) -> float:
    """Measure the time that is covered by at least one span."""
    covered, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory ever held: on a GPU by tensors, on a CPU by the process (0 where the system is silent)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError, KeyError):
        return status_bytes("VmHWM")
    return 0
