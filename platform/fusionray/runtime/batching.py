"""Batch crops across callers: when the generator is free, it computes all waiting crops together, up to its batch size.

No crop waits for a batch to fill. A single caller is not delayed; under load batches grow, because more crops arrive
while the generator computes. A batch may hold faces of one picture and of several.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fusionray.errors import Overloaded
from fusionray.runtime.crop_fuser import CropFuser, FusedCrops
from fusionray.runtime.pixels import FloatArray

# Called after each batch with the number of its crops, the seconds it took, and the number of crops that wait.
BatchObserver = Callable[[int, float, int], None]


@dataclass(eq=False)
class QueuedCrops:
    """The crops of one call of `submit`, and the parts computed so far.

    `num_taken` crops are in a batch or done. `waited`: seconds from `submit` until the first crop was in a batch.
    """

    sources: FloatArray
    crops: NDArray[np.uint8]
    result: Future[tuple[FusedCrops, float]]
    submitted_at: float = field(default_factory=time.perf_counter)
    waited: float | None = None
    parts: dict[int, FusedCrops] = field(default_factory=dict)
    num_taken: int = 0
    num_done: int = 0
    settled: bool = False


class CropBatcher:
    """Run a generator for many threads. `num_streams` batches are computed at the same time.

    `concurrent_fuser` computes batches while others are computed: on a CPU, all threads finish one batch soonest, but
    several batches with a few threads each give more throughput. `max_waiting` limits the waiting crops; `submit`
    refuses more.
    """

    def __init__(
        self,
        fuser: CropFuser,
        *,
        concurrent_fuser: CropFuser | None = None,
        num_streams: int = 1,
        max_waiting: int = 256,
        observer: BatchObserver | None = None,
    ) -> None:
        self.fuser = fuser
        self.concurrent_fuser = concurrent_fuser or fuser
        self.num_running = 0
        self.max_waiting = max_waiting
        self.observer = observer
        self.queue: deque[QueuedCrops] = deque()
        self.num_waiting = 0
        self.changed = threading.Condition()
        self.closed = False
        self.streams = [
            threading.Thread(target=self.run_stream, name=f"batches-{number}", daemon=True)
            for number in range(num_streams)
        ]
        for stream in self.streams:
            stream.start()

    def submit(self, sources: FloatArray, crops: NDArray[np.uint8]) -> Future[tuple[FusedCrops, float]]:
        """Queue crops uint8 [N,S,S,3], each with its source [N,...]; the future gives results and seconds waited.

        Cancelling the future removes the crops that are not computed yet from the queue.

        Raises: Overloaded if too many crops wait, or after `close`.
        """
        queued = QueuedCrops(sources, crops, Future())
        with self.changed:
            if self.closed:
                raise Overloaded("the model is being unloaded; send the request again")
            if self.num_waiting and self.num_waiting + len(crops) > self.max_waiting:
                raise Overloaded(f"{self.num_waiting} faces wait already; send the request again later")
            self.queue.append(queued)
            self.num_waiting += len(crops)
            self.changed.notify()
        return queued.result

    def close(self) -> None:
        """Compute all queued crops, then stop the threads; `submit` is refused from now on."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for stream in self.streams:
            stream.join()

    def run_stream(self) -> None:
        """Compute batches until the batcher is closed and its queue is empty."""
        while batch := self.wait_for_batch():
            started = time.perf_counter()
            try:
                self.compute(batch)
            finally:
                with self.changed:
                    self.num_running -= 1
            if self.observer is not None:
                num_crops = sum(part.stop - part.start for _, part in batch)
                self.observer(num_crops, time.perf_counter() - started, self.num_waiting)

    def compute(self, batch: list[tuple[QueuedCrops, slice]]) -> None:
        """Compute a batch; if it fails, compute its requests one by one, so that only the one at fault fails."""
        try:
            sources = np.concatenate([queued.sources[part] for queued, part in batch])
            crops = np.concatenate([queued.crops[part] for queued, part in batch])
            fused = self.choose_fuser().fuse(sources, crops)
        except Exception as error:  # noqa: BLE001 - every error is passed on to the callers of the batch
            if len(batch) > 1:
                for each in batch:
                    self.compute([each])
            else:
                self.settle(batch[0][0], error)
            return
        self.store_results(batch, fused)

    def check(self) -> None:
        """Check that all streams run; a replica without one of them has to be replaced.

        Raises: RuntimeError.
        """
        if not self.closed and not all(stream.is_alive() for stream in self.streams):
            raise RuntimeError("a thread that runs the generator has ended; see the log of the replica")

    def choose_fuser(self) -> CropFuser:
        """Choose the fuser of a batch: the one with all threads if no other batch runs or waits."""
        return self.fuser if self.num_running == 1 and not self.queue else self.concurrent_fuser

    def wait_for_batch(self) -> list[tuple[QueuedCrops, slice]]:
        """Wait for crops and take a batch of them, first come, first served; empty if closed and nothing waits."""
        with self.changed:
            while True:
                self.drop_cancelled()
                if self.queue:
                    self.num_running += 1
                    return self.take_batch()
                if self.closed:
                    return []
                self.changed.wait()

    def drop_cancelled(self) -> None:
        kept = [queued for queued in self.queue if not queued.result.done()]
        if len(kept) < len(self.queue):
            self.num_waiting = sum(len(queued.crops) - queued.num_taken for queued in kept)
            self.queue = deque(kept)

    def take_batch(self) -> list[tuple[QueuedCrops, slice]]:
        batch: list[tuple[QueuedCrops, slice]] = []
        room = self.fuser.max_batch
        now = time.perf_counter()
        while room and self.queue:
            queued = self.queue[0]
            count = min(room, len(queued.crops) - queued.num_taken)
            batch.append((queued, slice(queued.num_taken, queued.num_taken + count)))
            if queued.waited is None:
                queued.waited = now - queued.submitted_at
            queued.num_taken += count
            room -= count
            self.num_waiting -= count
            if queued.num_taken == len(queued.crops):
                self.queue.popleft()
        if self.queue:
            self.changed.notify()
        return batch

    def store_results(self, batch: list[tuple[QueuedCrops, slice]], fused: FusedCrops) -> None:
        """Give each caller its rows of a computed batch; complete the futures that have all of theirs."""
        start = 0
        for queued, part in batch:
            count = part.stop - part.start
            with self.changed:
                queued.parts[part.start] = FusedCrops(
                    fused.crops[start : start + count], fused.masks[start : start + count]
                )
                queued.num_done += count
                finished = queued.num_done == len(queued.crops)
            start += count
            if finished:
                self.settle(queued, (join_parts(queued.parts), queued.waited or 0.0))

    def settle(self, queued: QueuedCrops, outcome: tuple[FusedCrops, float] | Exception) -> None:
        """Complete a future once: streams may finish, or fail, parts of the same request at the same time."""
        with self.changed:
            if queued.settled:
                return
            queued.settled = True
        if not queued.result.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            queued.result.set_exception(outcome)
        else:
            queued.result.set_result(outcome)


def join_parts(parts_by_start: dict[int, FusedCrops]) -> FusedCrops:
    """Concatenate the parts by their first row; streams may finish them in any order."""
    parts = [parts_by_start[start] for start in sorted(parts_by_start)]
    if len(parts) == 1:
        return parts[0]
    return FusedCrops(np.concatenate([part.crops for part in parts]), np.concatenate([part.masks for part in parts]))
