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
# `ray job stop` kills a run three seconds after SIGTERM, so a stop must reach the workers quickly.
STOP_CHECK_SECONDS = 0.1
READ_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class WorkerInfo:
    """A worker: its rank among `num_ranks`, its process and node, and the units `completed` when it started."""

    rank: int
    num_ranks: int
    pid: int
    node: str
    completed: int


@dataclass
class ProgressState:
    """State of the work: `completed` units, newest `postfix` values, and what was reported since the last read.

    `reports`: metrics of evaluations, each with the units completed at that time; `lines`: messages for the user;
    `workers`: the newest worker of each rank. A worker that starts replaces the one of its rank, and all workers with
    another `num_ranks`; so, after a restart with as many workers, ranks that have not started yet show their old one.
    """

    completed: int = 0
    postfix: dict[str, float] = field(default_factory=dict)
    reports: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    workers: dict[int, WorkerInfo] = field(default_factory=dict)
    stop_requested: bool = False


@ray.remote(num_cpus=0)
class ProgressActor:
    """Ray actor that holds the progress of a run; `read` returns each report and line once."""

    def __init__(self) -> None:
        self.state = ProgressState()

    def set_completed(self, completed: int, postfix: dict[str, float]) -> bool:
        """Set the number of completed units; return whether a stop was requested."""
        self.state.completed, self.state.postfix = completed, postfix
        return self.state.stop_requested

    def log(self, line: str) -> None:
        self.state.lines.append(line)

    def report(self, completed: int, metrics: dict[str, float]) -> None:
        self.state.reports.append((completed, metrics))

    def add_worker(self, worker: WorkerInfo) -> None:
        others = self.state.workers
        self.state.workers = {rank: other for rank, other in others.items() if other.num_ranks == worker.num_ranks}
        self.state.workers[worker.rank] = worker

    def request_stop(self) -> None:
        self.state.stop_requested = True

    def read(self) -> ProgressState:
        read = self.state
        self.state = ProgressState(
            read.completed, read.postfix, workers=dict(read.workers), stop_requested=read.stop_requested
        )
        return read


class ProgressHandle:
    """A handle of a progress actor: workers report to it, the driver reads from it.

    The actor runs on the node of its creator, so that it is not lost with the node of a worker.
    """

    def __init__(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.actor: Any = ProgressActor.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]
        self.pending_stop_flag: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle_handle, (self.actor,)

    def set_completed(self, completed: int, postfix: Mapping[str, float]) -> None:
        """Set the number of completed units (absolute, not an increment); never blocks.

        `postfix`: values to show behind the bar, by name.
        """
        self.pending_stop_flag = self.actor.set_completed.remote(completed, dict(postfix))

    def is_stop_requested(self) -> bool:
        """Return whether a stop was requested, from the reply to the last `set_completed`.

        Returns False while no reply has arrived, and a reply is used once. Never blocks.
        """
        if self.pending_stop_flag is None or not ray.wait([self.pending_stop_flag], timeout=0)[0]:
            return False
        stop_flag, self.pending_stop_flag = self.pending_stop_flag, None
        # If the actor is lost, nobody has requested a stop.
        with contextlib.suppress(ray.exceptions.RayError):
            return bool(ray.get(stop_flag))
        return False

    def log(self, line: str) -> None:
        """Show the user a line above the bar; never blocks."""
        self.actor.log.remote(line)

    def report(self, completed: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of an evaluation after `completed` units; never blocks."""
        self.actor.report.remote(completed, dict(metrics))

    def add_worker(self, worker: WorkerInfo) -> None:
        """Report that a worker has started; never blocks."""
        self.actor.add_worker.remote(worker)

    def request_stop(self) -> None:
        """Request that the work saves its state and stops; never blocks."""
        self.actor.request_stop.remote()

    def read(self) -> ProgressState:
        """Return the state of the work, with what was reported since the last read.

        Raises: RayError if the actor is lost, or does not reply within `READ_TIMEOUT_SECONDS`.
        """
        state: ProgressState = ray.get(self.actor.read.remote(), timeout=READ_TIMEOUT_SECONDS)
        return state

    def close(self) -> None:
        """Kill the actor."""
        ray.kill(self.actor)

    @contextlib.contextmanager
    def progress_bar(
        self, title: str, total: int, unit: str, *, stop_event: threading.Event | None = None
    ) -> Iterator[None]:
        """Draw a progress bar during the block; request a stop, once, when `stop_event` is set."""

        def draw(block_ended: threading.Event) -> None:
            is_stop_sent = False
            with WorkBar(total=total, desc=title, unit=unit, smoothing=0.05, mininterval=POLL_SECONDS) as bar:
                drawn = time.monotonic()
                while not block_ended.wait(STOP_CHECK_SECONDS):
                    if stop_event is not None and stop_event.is_set() and not is_stop_sent:
                        self.request_stop()
                        is_stop_sent = True
                    if time.monotonic() - drawn > POLL_SECONDS:
                        self.redraw(bar)
                        drawn = time.monotonic()
                self.redraw(bar)

        with run_in_background(draw, "progress"):
            yield

    def redraw(self, bar: WorkBar) -> None:
        # The bar is a convenience: the work continues if the actor does not reply.
        with contextlib.suppress(ray.exceptions.RayError):
            state = self.read()
            for line in state.lines:
                tqdm.write(line, file=sys.stderr)
            bar.show(state)


class WorkBar(tqdm):  # type: ignore[type-arg]  # a generic class for mypy alone
    """The bar of a run. Its clock starts with the first workers, at the units that are completed by then: its speed
    and the time left are those of this run, not of the runs that it goes on from.
    """

    has_started = False

    def show(self, state: ProgressState) -> None:
        """Draw the state of the work."""
        if state.workers and not self.has_started:
            self.has_started = True
            self.reset()
            self.initial = self.n = self.last_print_n = max(worker.completed for worker in state.workers.values())
            self.refresh()
        completed = state.completed if self.total is None else min(state.completed, self.total)
        if completed > self.n:
            shown = list(state.postfix.items())[:4]
            self.set_postfix({name: f"{value:.3g}" for name, value in shown}, refresh=False)
            self.update(completed - self.n)


def unpickle_handle(actor: Any) -> ProgressHandle:
    """Make another handle of a progress actor; a pending reply stays with the handle that called `set_completed`."""
    progress = ProgressHandle.__new__(ProgressHandle)
    progress.actor, progress.pending_stop_flag = actor, None
    return progress
