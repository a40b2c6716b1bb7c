"""Batches across callers: whatever waits when the model is free is computed together.

Nothing waits for a batch to fill. One caller alone pays nothing; under load batches grow by themselves, since more
arrives while the model works. Faces of one picture and of different pictures are the same to it.
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

# Told after each batch: how many crops it held, the seconds that it took, and how many crops wait.
Observer = Callable[[int, float, int], None]


@dataclass(eq=False)
class QueuedCrops:
    """What one caller wants fused, and what of it is done; `waited` are seconds until its first crop was computed."""

    sources: FloatArray
    crops: NDArray[np.uint8]
    result: Future[tuple[FusedCrops, float]]
    ordered_at: float = field(default_factory=time.perf_counter)
    waited: float | None = None
    parts: dict[int, FusedCrops] = field(default_factory=dict)
    num_taken: int = 0
    num_done: int = 0


class CropBatcher:
    """Feed a generator from many threads. `num_lanes` batches are computed at the same time.

    `concurrent_fuser` computes batches that run at the same time as others: on a CPU, all threads finish one batch
    soonest, but several batches with a few threads each have more throughput. `max_waiting` limits the waiting crops;
    more are refused at once.
    """

    def __init__(
        self,
        fuser: CropFuser,
        *,
        concurrent_fuser: CropFuser | None = None,
        num_lanes: int = 1,
        max_waiting: int = 256,
        observer: Observer | None = None,
    ) -> None:
        self.fuser = fuser
        self.concurrent_fuser = concurrent_fuser or fuser
        self.num_working = 0
        self.max_waiting = max_waiting
        self.observer = observer
        self.orders: deque[QueuedCrops] = deque()
        self.num_waiting = 0
        self.changed = threading.Condition()
        self.closed = False
        self.lanes = [
            threading.Thread(target=self.work, name=f"batches-{number}", daemon=True) for number in range(num_lanes)
        ]
        for lane in self.lanes:
            lane.start()

    def submit(self, sources: FloatArray, crops: NDArray[np.uint8]) -> Future[tuple[FusedCrops, float]]:
        """Order the fusion of crops uint8 [N,S,S,3], each with its source [N,...]; gives them and the seconds waited.

        Cancelling the future takes what is not computed yet out of the queue.

        Raises: Overloaded if too much waits already.
        """
        order = QueuedCrops(sources, crops, Future())
        with self.changed:
            if self.closed:
                raise Overloaded("the model is being put away; ask again")
            if self.num_waiting and self.num_waiting + len(crops) > self.max_waiting:
                raise Overloaded(f"{self.num_waiting} faces wait already; ask again later")
            self.orders.append(order)
            self.num_waiting += len(crops)
            self.changed.notify()
        return order.result

    def close(self) -> None:
        """Finish what waits, then end; later orders are refused."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for lane in self.lanes:
            lane.join()

    def work(self) -> None:
        """Compute batches until closed."""
        while batch := self.take():
            started = time.perf_counter()
            try:
                sources = np.concatenate([order.sources[part] for order, part in batch])
                crops = np.concatenate([order.crops[part] for order, part in batch])
                fused = self.choose().fuse(sources, crops)
            except Exception as error:  # noqa: BLE001 - whatever it is belongs to those who wait for it
                for order, _ in batch:
                    fail(order, error)
                continue
            finally:
                with self.changed:
                    self.num_working -= 1
            if self.observer is not None:
                self.observer(len(crops), time.perf_counter() - started, self.num_waiting)
            self.hand_out(batch, fused)

    def choose(self) -> CropFuser:
        """Choose what computes a batch that was taken: everything for one that is alone."""
        return self.fuser if self.num_working == 1 and not self.orders else self.concurrent_fuser

    def take(self) -> list[tuple[QueuedCrops, slice]]:
        """Wait for work and take a batch of it, in the order in which it came; empty once closed and done."""
        with self.changed:
            while True:
                self.drop_cancelled()
                if self.orders:
                    self.num_working += 1
                    return self.fill()
                if self.closed:
                    return []
                self.changed.wait()

    def drop_cancelled(self) -> None:
        kept = [order for order in self.orders if not order.result.done()]
        if len(kept) < len(self.orders):
            self.num_waiting = sum(len(order.crops) - order.num_taken for order in kept)
            self.orders = deque(kept)

    def fill(self) -> list[tuple[QueuedCrops, slice]]:
        batch: list[tuple[QueuedCrops, slice]] = []
        room = self.fuser.max_batch
        now = time.perf_counter()
        while room and self.orders:
            order = self.orders[0]
            count = min(room, len(order.crops) - order.num_taken)
            batch.append((order, slice(order.num_taken, order.num_taken + count)))
            if order.waited is None:
                order.waited = now - order.ordered_at
            order.num_taken += count
            room -= count
            self.num_waiting -= count
            if order.num_taken == len(order.crops):
                self.orders.popleft()
        if self.orders:
            self.changed.notify()
        return batch

    def hand_out(self, batch: list[tuple[QueuedCrops, slice]], fused: FusedCrops) -> None:
        start = 0
        for order, part in batch:
            count = part.stop - part.start
            with self.changed:
                order.parts[part.start] = FusedCrops(
                    fused.crops[start : start + count], fused.masks[start : start + count]
                )
                order.num_done += count
                finished = order.num_done == len(order.crops)
            start += count
            if finished and order.result.set_running_or_notify_cancel():
                order.result.set_result((join(order.parts), order.waited or 0.0))


def fail(order: QueuedCrops, error: Exception) -> None:
    if not order.result.done() and order.result.set_running_or_notify_cancel():
        order.result.set_exception(error)


def join(found: dict[int, FusedCrops]) -> FusedCrops:
    """Put the parts of an order together; lanes may have finished them in any order."""
    parts = [found[start] for start in sorted(found)]
    if len(parts) == 1:
        return parts[0]
    return FusedCrops(np.concatenate([part.crops for part in parts]), np.concatenate([part.masks for part in parts]))
