"""Progress of work on the cluster: workers report to an actor, and the driver draws a progress bar."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tqdm import tqdm

from fusionray.background import run_in_background

POLL_SECONDS = 0.5
# `ray job stop` gives a run three seconds to save its state.
STOP_CHECK_SECONDS = 0.1
ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class WorkerInfo:
    """A worker: its rank among `num_ranks`, its process and node, and the position at which it started."""

    rank: int
    num_ranks: int
    pid: int
    node: str
    position: int


@dataclass
class ProgressState:
    """State of the work: its position, current figures, and what was reported since the last read.

    `reports`: metrics of evaluations with the position they were made at; `lines`: messages for the user; `workers`:
    the workers of the newest start that have begun, by rank.
    """

    position: int = 0
    notes: dict[str, float] = field(default_factory=dict)
    reports: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    workers: dict[int, WorkerInfo] = field(default_factory=dict)
    stop_requested: bool = False


@ray.remote(num_cpus=0)
class ProgressActor:
    """Hold the progress of some work; each report and each line is returned once."""

    def __init__(self) -> None:
        self.state = ProgressState()

    def advance(self, position: int, notes: dict[str, float]) -> bool:
        """Set the position; return whether the work shall stop."""
        self.state.position, self.state.notes = position, notes
        return self.state.stop_requested

    def log(self, line: str) -> None:
        self.state.lines.append(line)

    def report(self, position: int, metrics: dict[str, float]) -> None:
        self.state.reports.append((position, metrics))

    def add_worker(self, worker: WorkerInfo) -> None:
        others = self.state.workers
        self.state.workers = {rank: other for rank, other in others.items() if other.num_ranks == worker.num_ranks}
        self.state.workers[worker.rank] = worker

    def request_stop(self) -> None:
        self.state.stop_requested = True

    def read(self) -> ProgressState:
        read = self.state
        self.state = ProgressState(
            read.position, read.notes, workers=dict(read.workers), stop_requested=read.stop_requested
        )
        return read


class ProgressHandle:
    """A handle of a progress actor: workers report to it, the driver reads from it.

    The actor runs on the node of its creator, so that it is not lost with the node of a worker.
    """

    def __init__(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.actor: Any = ProgressActor.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]
        self.answer: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (self.actor,)

    def advance(self, position: int, notes: Mapping[str, float]) -> None:
        """Report the position of the work; never waits."""
        self.answer = self.actor.advance.remote(position, dict(notes))

    def is_stop_requested(self) -> bool:
        """Tell whether the work shall stop, by the answer to the last `advance` if it is here; never waits."""
        if self.answer is None or not ray.wait([self.answer], timeout=0)[0]:
            return False
        answer, self.answer = self.answer, None
        # If the actor is lost, nobody has requested a stop.
        with contextlib.suppress(ray.exceptions.RayError):
            return bool(ray.get(answer))
        return False

    def log(self, line: str) -> None:
        """Show the user a line above the bar; never waits."""
        self.actor.log.remote(line)

    def report(self, position: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of an evaluation made at a position; never waits."""
        self.actor.report.remote(position, dict(metrics))

    def add_worker(self, worker: WorkerInfo) -> None:
        """Report that a worker has started; never waits."""
        self.actor.add_worker.remote(worker)

    def request_stop(self) -> None:
        """Request that the work saves its state and stops; never waits."""
        self.actor.request_stop.remote()

    def read(self) -> ProgressState:
        """Return the state of the work, with what was reported since the last read.

        Raises: RayError if the actor is lost, or does not answer for some seconds.
        """
        state: ProgressState = ray.get(self.actor.read.remote(), timeout=ANSWER_SECONDS)
        return state

    def close(self) -> None:
        """End the actor."""
        ray.kill(self.actor)

    @contextlib.contextmanager
    def shown(self, title: str, total: int, unit: str, *, ending: threading.Event | None = None) -> Iterator[None]:
        """Draw the bar during the block; request a stop once `ending` is set."""

        def draw(stop: threading.Event) -> None:
            with tqdm(total=total, desc=title, unit=unit, smoothing=0.05, mininterval=POLL_SECONDS) as bar:
                drawn = time.monotonic()
                while not stop.wait(STOP_CHECK_SECONDS):
                    if ending is not None and ending.is_set():
                        self.request_stop()
                    if time.monotonic() - drawn > POLL_SECONDS:
                        self.update(bar, total)
                        drawn = time.monotonic()
                self.update(bar, total)

        with run_in_background(draw, "progress"):
            yield

    def update(self, bar: tqdm[Any], total: int) -> None:
        # The bar is a convenience: the work continues if the actor does not answer.
        with contextlib.suppress(ray.exceptions.RayError):
            state = self.read()
            for line in state.lines:
                tqdm.write(line, file=sys.stderr)
            if state.position > bar.n:
                notes = list(state.notes.items())[:4]
                bar.set_postfix({name: f"{value:.3g}" for name, value in notes}, refresh=False)
                bar.update(min(state.position, total) - bar.n)


def rebuild(actor: Any) -> ProgressHandle:
    """Make another handle of a progress actor; the answer to an `advance` stays with the handle that called it."""
    progress = ProgressHandle.__new__(ProgressHandle)
    progress.actor, progress.answer = actor, None
    return progress
