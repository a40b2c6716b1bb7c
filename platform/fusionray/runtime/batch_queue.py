"""A queue whose threads compute what waits in common batches: when a thread is free, it takes all that fits.

No call waits for a batch to fill. A single caller is not delayed; under load batches grow, because more calls arrive
while the model computes.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fusionray.errors import Overloaded
from fusionray.runtime.cores import Cores, OwnCores

Work = TypeVar("Work")
Made = TypeVar("Made")
# Called after each batch with the number of its items, the seconds it took, and the number of items that wait.
BatchObserver = Callable[[int, float, int], None]


@dataclass(eq=False)
class QueuedCall(Generic[Work, Made]):
    """One call: so many items, and what is made of them so far.

    Items of calls with the same `key` share batches; a call with the key None is a batch of its own. `num_taken` items
    are in a batch or done. `waited`: seconds from the call until its first item was in a batch.
    """

    work: Work
    num_items: int
    key: Hashable
    result: Future[tuple[Made, float]] = field(default_factory=Future)
    submitted_at: float = field(default_factory=time.perf_counter)
    waited: float | None = None
    parts: dict[int, Made] = field(default_factory=dict)
    num_taken: int = 0
    num_done: int = 0
    settled: bool = False


@dataclass(frozen=True)
class Part(Generic[Work, Made]):
    """Those items of a call, from `start` up to `stop`, that are in one batch."""

    call: QueuedCall[Work, Made]
    start: int
    stop: int

    @property
    def items(self) -> slice:
        return slice(self.start, self.stop)


class BatchQueue(ABC, Generic[Work, Made]):
    """Compute calls of many threads in batches of up to `max_batch` items, `num_streams` batches at the same time.

    `max_waiting` limits the waiting items, which `unit` names; `enqueue` refuses more. `cores` that other processes
    share say before each batch how many may be computed at the same time just now. Who derives from it says how a batch
    is computed, and calls `start` when everything else is ready.
    """

    unit = "items"

    def __init__(
        self,
        *,
        max_batch: int,
        num_streams: int,
        max_waiting: int,
        observer: BatchObserver | None,
        cores: Cores | None = None,
    ) -> None:
        self.max_batch, self.max_waiting = max_batch, max_waiting
        self.observer = observer
        self.cores = cores or OwnCores(num_streams)
        self.num_running = 0
        self.queue: deque[QueuedCall[Work, Made]] = deque()
        self.num_waiting = 0
        self.changed = threading.Condition()
        self.closed = False
        self.streams = [
            threading.Thread(target=self.run_stream, name=f"batches-{number}", daemon=True)
            for number in range(num_streams)
        ]

    @abstractmethod
    def run(self, batch: Sequence[Part[Work, Made]]) -> list[Made]:
        """Compute a batch; return what is made of each of its parts."""
        ...

    @abstractmethod
    def join(self, parts: Sequence[Made]) -> Made:
        """Join what was made of the parts of one call, in their order; there are at least two."""
        ...

    def start(self) -> None:
        """Start the threads."""
        for stream in self.streams:
            stream.start()

    def enqueue(self, work: Work, num_items: int, key: Hashable = ()) -> Future[tuple[Made, float]]:
        """Queue a call; the future gives what is made of it, and the seconds it waited.

        Cancelling the future removes the items that are not computed yet from the queue.

        Raises: Overloaded if too many items wait, or after `close`.
        """
        call: QueuedCall[Work, Made] = QueuedCall(work, num_items, key)
        with self.changed:
            if self.closed:
                raise Overloaded("the model is being unloaded; send the request again")
            if self.num_waiting and self.num_waiting + num_items > self.max_waiting:
                raise Overloaded(f"{self.num_waiting} {self.unit} wait already; send the request again later")
            self.queue.append(call)
            self.num_waiting += num_items
            self.changed.notify()
        return call.result

    def run_at_once(self, work: Work, num_items: int, key: Hashable = ()) -> Made | None:
        """Compute a call on the calling thread, if nothing waits, one more may run, and it fits one batch; else None.

        This saves the caller two changes of thread, which take longer the longer the cores have idled, and what it has
        in the cache of its core stays there.
        """
        with self.changed:
            if self.closed or self.queue or num_items > self.max_batch or self.num_running >= self.most_running:
                return None
            self.num_running += 1
        started = time.perf_counter()
        try:
            with self.cores.working():
                made = self.run([Part(QueuedCall(work, num_items, key), 0, num_items)])[0]
        finally:
            self.leave()
        self.observe(num_items, time.perf_counter() - started)
        return made

    def close(self) -> None:
        """Compute all queued calls, then stop the threads; `enqueue` is refused from now on."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for stream in self.streams:
            stream.join()

    def check(self) -> None:
        """Check that all streams run; a replica without one of them has to be replaced.

        Raises: RuntimeError.
        """
        if not self.closed and not all(stream.is_alive() for stream in self.streams):
            raise RuntimeError("a thread that runs the generator has ended; see the log of the replica")

    @property
    def most_running(self) -> int:
        """Return how many batches may be computed at the same time just now."""
        return min(len(self.streams), self.cores.count_cores())

    @property
    def is_only_batch(self) -> bool:
        """Tell, in a thread that computes a batch, whether no other one waits or is computed on these cores."""
        return self.num_running == 1 and not self.queue and not self.cores.do_others_work()

    def run_stream(self) -> None:
        """Compute batches until the queue is closed and empty."""
        while batch := self.wait_for_batch():
            started = time.perf_counter()
            try:
                with self.cores.working():
                    outcomes = self.compute(batch)
            finally:
                # Before the callers get their results: their next calls would find this stream still at work.
                self.leave()
            seconds = time.perf_counter() - started
            for part, outcome in outcomes:
                self.store(part, outcome)
            self.observe(sum(part.stop - part.start for part in batch), seconds)

    def leave(self) -> None:
        """Count a batch as computed, and wake a stream for the next one; after `close`, all of them, to end."""
        with self.changed:
            self.num_running -= 1
            self.changed.notify(len(self.streams) if self.closed else 1)

    def observe(self, num_items: int, seconds: float) -> None:
        if self.observer is not None:
            self.observer(num_items, seconds, self.num_waiting)

    def compute(self, batch: Sequence[Part[Work, Made]]) -> list[tuple[Part[Work, Made], Made | Exception]]:
        """Compute a batch; if it fails, compute its calls one by one, so that only the one at fault fails."""
        try:
            return list(zip(batch, self.run(batch), strict=True))
        except Exception as error:  # noqa: BLE001 - every error is passed on to the callers of the batch
            if len(batch) == 1:
                return [(batch[0], error)]
            return [outcome for part in batch for outcome in self.compute([part])]

    def wait_for_batch(self) -> list[Part[Work, Made]]:
        """Wait for calls and take a batch of them, first come, first served; empty if closed and nothing waits."""
        with self.changed:
            while True:
                self.drop_cancelled()
                if self.queue and self.num_running < self.most_running:
                    self.num_running += 1
                    return self.take_batch()
                if self.closed and not self.queue:
                    return []
                self.changed.wait()

    def drop_cancelled(self) -> None:
        kept = [call for call in self.queue if not call.result.done()]
        if len(kept) < len(self.queue):
            self.num_waiting = sum(call.num_items - call.num_taken for call in kept)
            self.queue = deque(kept)

    def take_batch(self) -> list[Part[Work, Made]]:
        """Take the first call, and what fits beside it of all that have its key."""
        batch: list[Part[Work, Made]] = []
        room = self.max_batch
        now = time.perf_counter()
        first = self.queue[0]
        for call in [call for call in self.queue if call is first or call.key == first.key is not None]:
            start = call.num_taken
            call.num_taken += min(room, call.num_items - start)
            batch.append(Part(call, start, call.num_taken))
            if call.waited is None:
                call.waited = now - call.submitted_at
            room -= call.num_taken - start
            self.num_waiting -= call.num_taken - start
            if call.num_taken == call.num_items:
                self.queue.remove(call)
            if not room:
                break
        if self.queue:
            self.changed.notify()
        return batch

    def store(self, part: Part[Work, Made], outcome: Made | Exception) -> None:
        """Keep what was made of a part; complete the future of its call if that is all, or if the part failed."""
        call = part.call
        if isinstance(outcome, Exception):
            self.settle(call, outcome)
            return
        with self.changed:
            call.parts[part.start] = outcome
            call.num_done += part.stop - part.start
            finished = call.num_done == call.num_items
        if finished:
            # By their first item: streams may finish them in any order.
            parts = [call.parts[start] for start in sorted(call.parts)]
            self.settle(call, (parts[0] if len(parts) == 1 else self.join(parts), call.waited or 0.0))

    def settle(self, call: QueuedCall[Work, Made], outcome: tuple[Made, float] | Exception) -> None:
        """Complete a future once: streams may finish, or fail, parts of the same call at the same time."""
        with self.changed:
            if call.settled:
                return
            call.settled = True
        if not call.result.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            call.result.set_exception(outcome)
        else:
            call.result.set_result(outcome)
