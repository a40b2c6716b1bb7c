"""Progress of work that runs elsewhere on the cluster: told to a board, shown as a bar where the user sits."""

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
# `ray job stop` gives a run three seconds to save what it has.
NOTICE_SECONDS = 0.1
ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class WorkerInfo:
    """Where a worker computes: its rank among how many, its process and the node of that; and where it began."""

    rank: int
    num_ranks: int
    pid: int
    node: str
    position: int


@dataclass
class ProgressState:
    """How far work is: its position, figures beside it, and what was told since the last look.

    `reports`: figures of evaluations with the position that they were made at; `lines`: what the user is to read;
    `seats`: the workers of the newest start that have arrived.
    """

    position: int = 0
    notes: dict[str, float] = field(default_factory=dict)
    reports: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    seats: dict[int, WorkerInfo] = field(default_factory=dict)
    halted: bool = False


@ray.remote(num_cpus=0)
class ProgressActor:
    """Keep the standing; what is news is given out once."""

    def __init__(self) -> None:
        self.standing = ProgressState()

    def put(self, position: int, notes: dict[str, float]) -> bool:
        """Take a position; answer whether the work is to end."""
        self.standing.position, self.standing.notes = position, notes
        return self.standing.halted

    def add(self, line: str) -> None:
        self.standing.lines.append(line)

    def report(self, position: int, metrics: dict[str, float]) -> None:
        self.standing.reports.append((position, metrics))

    def enter(self, seat: WorkerInfo) -> None:
        others = self.standing.seats
        self.standing.seats = {rank: other for rank, other in others.items() if other.num_ranks == seat.num_ranks}
        self.standing.seats[seat.rank] = seat

    def halt(self) -> None:
        self.standing.halted = True

    def look(self) -> ProgressState:
        seen = self.standing
        self.standing = ProgressState(seen.position, seen.notes, seats=dict(seen.seats), halted=seen.halted)
        return seen


class ProgressHandle:
    """A handle that workers write to and whoever started the work reads from.

    The board lives on the node of the one who made it: it is not lost with the node of a worker.
    """

    def __init__(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.actor: Any = ProgressActor.options(scheduling_strategy=here).remote()  # type: ignore[attr-defined]
        self.answer: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (self.actor,)

    def advance(self, position: int, notes: Mapping[str, float]) -> None:
        """Tell how far the work is; never waits."""
        self.answer = self.actor.put.remote(position, dict(notes))

    def is_halted(self) -> bool:
        """Tell whether the work is to end, as far as the answer to the last `advance` is here; never waits."""
        if self.answer is None or not ray.wait([self.answer], timeout=0)[0]:
            return False
        answer, self.answer = self.answer, None
        # Whoever lost the board was not told to end.
        with contextlib.suppress(ray.exceptions.RayError):
            return bool(ray.get(answer))
        return False

    def say(self, line: str) -> None:
        """Send a line to the user, above the bar; never waits."""
        self.actor.add.remote(line)

    def report(self, position: int, metrics: Mapping[str, float]) -> None:
        """Tell the figures of an evaluation made at a position; never waits."""
        self.actor.report.remote(position, dict(metrics))

    def enter(self, seat: WorkerInfo) -> None:
        """Tell that a worker has arrived; never waits."""
        self.actor.enter.remote(seat)

    def halt(self) -> None:
        """Ask the work to save what it has and to end; never waits."""
        self.actor.halt.remote()

    def look(self) -> ProgressState:
        """Return how far the work is, and what was told since the last look.

        Raises: RayError if the board is lost, or does not answer for some seconds.
        """
        standing: ProgressState = ray.get(self.actor.look.remote(), timeout=ANSWER_SECONDS)
        return standing

    def close(self) -> None:
        """End the board."""
        ray.kill(self.actor)

    @contextlib.contextmanager
    def shown(self, title: str, total: int, unit: str, *, ending: threading.Event | None = None) -> Iterator[None]:
        """Draw the bar while the block runs; once `ending` is set the work is asked to end."""

        def draw(stop: threading.Event) -> None:
            with tqdm(total=total, desc=title, unit=unit, smoothing=0.05, mininterval=POLL_SECONDS) as bar:
                drawn = time.monotonic()
                while not stop.wait(NOTICE_SECONDS):
                    if ending is not None and ending.is_set():
                        self.halt()
                    if time.monotonic() - drawn > POLL_SECONDS:
                        self.update(bar, total)
                        drawn = time.monotonic()
                self.update(bar, total)

        with run_in_background(draw, "progress"):
            yield

    def update(self, bar: tqdm[Any], total: int) -> None:
        # The board is a convenience: work goes on where it does not answer.
        with contextlib.suppress(ray.exceptions.RayError):
            standing = self.look()
            for line in standing.lines:
                tqdm.write(line, file=sys.stderr)
            if standing.position > bar.n:
                notes = list(standing.notes.items())[:4]
                bar.set_postfix({name: f"{value:.3g}" for name, value in notes}, refresh=False)
                bar.update(min(standing.position, total) - bar.n)


def rebuild(actor: Any) -> ProgressHandle:
    """Make another handle of a board; answers under way stay with the one that asked."""
    board = ProgressHandle.__new__(ProgressHandle)
    board.actor, board.answer = actor, None
    return board
