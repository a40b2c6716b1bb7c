"""Process jobs: one worker in each replica, with several threads. If a worker dies, another continues its jobs."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from fusionray.errors import NotDecrypted
from fusionray.serving.jobs.folder import FULL_ERRORS, JobFolder
from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.schema import Problem
from fusionray.storage.lease import Lease

logger = logging.getLogger("ray.serve")

Work = Callable[[JobItem], ItemOutcome]

# How soon a worker notices a shutdown or a lost lease while it processes an item.
NOTICE_SECONDS = 0.1
RETRY_SECONDS = 1.0
SWEEP_SECONDS = 60.0
BACKOFF_SECONDS = 30.0
# After so many workers died while they held a job, its items run one at a time, which finds the item at fault.
MAX_PARALLEL_DEATHS = 2


class JobWorker:
    """Take jobs from a store and run `work` on their items, until `drain`.

    For a faulty picture, `work` returns an outcome with a problem. If `work` raises, or the process dies, the item is
    tried again; after `max_attempts` attempts it has failed.
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
        self.store = store
        self.work = work
        self.parallel_items = parallel_items
        self.lease_seconds = lease_seconds
        self.poll_seconds = poll_seconds
        self.max_attempts = max_attempts
        self.stop = threading.Event()
        self.woken = threading.Event()
        self.claiming = threading.Lock()
        self.leases: dict[str, Lease] = {}
        self.backoff: dict[str, float] = {}
        self.swept_at = float("-inf")
        self.pool = ThreadPoolExecutor(parallel_jobs * parallel_items, "job-item")
        self.threads = [threading.Thread(target=self.run, name="job", daemon=True) for _ in range(parallel_jobs)]

    def start(self) -> None:
        """Start to look for jobs."""
        for thread in self.threads:
            thread.start()

    def wake(self) -> None:
        """Look for jobs at once, because one was just created."""
        self.woken.set()

    @property
    def is_alive(self) -> bool:
        """Tell whether all threads are running."""
        return all(thread.is_alive() for thread in self.threads)

    def drain(self) -> None:
        """Release all jobs at once. The workers that take them repeat the unfinished items."""
        self.stop.set()
        self.woken.set()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def run(self) -> None:
        """Process one job after the other."""
        while not self.stop.is_set():
            self.woken.clear()
            try:
                if self.run_once():
                    continue
            except OSError as error:
                logger.error("jobs: %s; trying again", error)
            self.woken.wait(self.poll_seconds)

    def run_once(self) -> bool:
        """Process one job until it ends or is released; return whether there was one."""
        self.sweep()
        claimed = self.claim()
        if claimed is None:
            return False
        folder, lease = claimed
        with lease.held():
            try:
                self.process(folder, lease)
            except OSError as error:
                self.handle_file_error(folder, error)
            except NotDecrypted:
                folder.end("failed", "the inputs of the job cannot be decrypted; send it again")
        return True

    def claim(self) -> tuple[JobFolder, Lease] | None:
        """Take the first open job that no worker holds."""
        with self.claiming:
            now = time.monotonic()
            self.backoff = {name: until for name, until in self.backoff.items() if until > now}
            folders = [folder for folder in self.store.list_open() if folder.record.job not in self.backoff]
            names = {folder.record.job for folder in folders}
            self.leases = {name: lease for name, lease in self.leases.items() if name in names}
            for folder in folders:
                lease = self.leases.setdefault(
                    folder.record.job, Lease(folder.path, timeout_seconds=self.lease_seconds)
                )
                try:
                    # A job that may have killed two workers waits for its timeout, so that they can restart first.
                    if lease.try_take(patient=lease.count_lost() >= MAX_PARALLEL_DEATHS):
                        del self.leases[folder.record.job]
                        return folder, lease
                except OSError as error:
                    if not isinstance(error, FileNotFoundError):
                        logger.warning("job %s cannot be taken: %s", folder.record.job, error)
        return None

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

    def handle_file_error(self, folder: JobFolder, error: OSError) -> None:
        """Fail a job whose files could not be read or written, or try it again later."""
        if not folder.is_open:
            return
        if error.errno in FULL_ERRORS:
            folder.end("failed", "the disk of the service is full; try again later")
        elif isinstance(error, FileNotFoundError):
            folder.end("failed", "pictures of the job are no longer there; send it again")
        else:
            # Other jobs run first meanwhile.
            self.backoff[folder.record.job] = time.monotonic() + BACKOFF_SECONDS
            logger.error("job %s: %s; trying again later", folder.record.job, error)

    def sweep(self) -> None:
        """Remove expired jobs, once in `SWEEP_SECONDS`."""
        now = time.monotonic()
        if now - self.swept_at > SWEEP_SECONDS:
            self.swept_at = now
            self.store.sweep()


def failed(detail: str) -> ItemOutcome:
    """Build the outcome of an item that the service failed to process."""
    return ItemOutcome(problem=Problem(500, "internal", "Internal error", detail).document())
