"""Process jobs of pictures: one worker in each replica, with several threads."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.holder import MAX_PARALLEL_DEATHS, NOTICE_SECONDS, JobHolder
from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.schema import Problem
from fusionray.storage.lease import Lease

logger = logging.getLogger("ray.serve")

Work = Callable[[JobItem], ItemOutcome]

RETRY_SECONDS = 1.0


class JobWorker(JobHolder):
    """Take jobs of pictures from a store and run `work` on their items, until `drain`.

    For a faulty picture, `work` returns an outcome with a problem. If `work` raises, or the process dies, the item is
    tried again; after `max_attempts` attempts it has failed. After `MAX_PARALLEL_DEATHS` deaths the items run one at a
    time, which finds the item at fault.
    """

    def __init__(
        self,
        store: JobStore,
        work: Work,
        *,
        parallel_jobs: int = 1,
        parallel_items: int = 4,
        lease_seconds: float = 15.0,
        poll_seconds: float = 1.0,
        max_attempts: int = 3,
    ) -> None:
        super().__init__(
            store,
            films=False,
            parallel_jobs=parallel_jobs,
            lease_seconds=lease_seconds,
            poll_seconds=poll_seconds,
        )
        self.work = work
        self.parallel_items = parallel_items
        self.max_attempts = max_attempts
        self.pool = ThreadPoolExecutor(parallel_jobs * parallel_items, "job-item")

    def drain(self) -> None:
        """Release all jobs at once. The workers that take them repeat the unfinished items."""
        super().drain()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def process(self, folder: JobFolder, lease: Lease) -> None:
        """Process the unfinished items, and end the job after the last.

        Raises: OSError; NotDecrypted.
        """
        num_deaths = lease.count_lost()
        width = 1 if num_deaths >= MAX_PARALLEL_DEATHS else self.parallel_items
        finished = folder.progress().finished
        # Due time, attempts so far, index; a failed item waits behind those that are due.
        todo = [(0.0, 0, index) for index in range(1, folder.record.total + 1) if index not in finished]
        pending: dict[Future[ItemOutcome], tuple[int, int]] = {}
        inputs = folder.read_inputs(self.store.key)
        while todo or pending:
            if self.stop.is_set() or not lease.is_held or not folder.is_open:
                self.abandon(folder, pending, num_deaths)
                return
            while todo and len(pending) < width and todo[0][0] <= time.monotonic() and folder.is_open:
                _, tries, index = heapq.heappop(todo)
                if num_deaths and folder.record_attempt(index) >= self.max_attempts:
                    folder.write_result(index, failed("the work on this picture ended its process again and again"))
                    continue
                item = folder.read_item(index, inputs)
                pending[self.pool.submit(self.work, item)] = (index, tries + 1)
            if not pending:
                self.stop.wait(NOTICE_SECONDS)
                continue
            for future in wait(pending, NOTICE_SECONDS, FIRST_COMPLETED).done:
                index, tries = pending.pop(future)
                error = future.exception()
                if error is None:
                    folder.write_result(index, future.result())
                elif tries < self.max_attempts:
                    heapq.heappush(todo, (time.monotonic() + tries * RETRY_SECONDS, tries, index))
                else:
                    logger.error("job %s, item %d", folder.record.job, index, exc_info=error)
                    folder.write_result(index, failed("the work on this picture broke; see the log of the service"))
        if lease.is_held:
            folder.finish()

    def abandon(self, folder: JobFolder, pending: dict[Future[ItemOutcome], tuple[int, int]], num_deaths: int) -> None:
        """Stop the work on the pending items; a shutdown does not count as an attempt."""
        for future, (index, _) in pending.items():
            future.cancel()
            if num_deaths and self.stop.is_set():
                folder.clear_attempts(index)


def failed(detail: str) -> ItemOutcome:
    """Build the outcome of an item that the service failed to process."""
    return ItemOutcome(problem=Problem(500, "internal", "Internal error", detail).document())
