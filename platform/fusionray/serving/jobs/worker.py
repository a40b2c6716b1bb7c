"""Work off jobs: one runner a replica, several threads. A runner may die at any time; another goes on where it was."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from fusionray.serving.jobs.folder import FULL_ERRORS, JobFolder
from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.jobs.store import JobStore
from fusionray.storage.lease import Lease

logger = logging.getLogger("ray.serve")

Work = Callable[[JobItem], ItemOutcome]

# How soon a shutdown, or a lost lease, is noticed while an item is worked on.
NOTICE_SECONDS = 0.1
RETRY_SECONDS = 1.0
SWEEP_SECONDS = 60.0
SHUN_SECONDS = 30.0
# From the second process that died over a job on, its items are worked on one at a time: that finds the one at fault.
SUSPICIOUS_DEATHS = 2


class JobWorker:
    """Take jobs of a store and do `work` on their items, until `drain`.

    A picture at fault is an outcome with a problem. If `work` raises, the item is tried again, `max_attempts` times
    in all, and then it has failed; the same counts for an item over which processes die.
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
        self.news = threading.Event()
        self.claiming = threading.Lock()
        self.watched: dict[str, Lease] = {}
        self.shunned: dict[str, float] = {}
        self.swept_at = float("-inf")
        self.pool = ThreadPoolExecutor(parallel_jobs * parallel_items, "job-item")
        self.threads = [threading.Thread(target=self.run, name="job", daemon=True) for _ in range(parallel_jobs)]

    def start(self) -> None:
        """Begin to look for jobs."""
        for thread in self.threads:
            thread.start()

    def wake(self) -> None:
        """Look for jobs at once: one was just made."""
        self.news.set()

    @property
    def is_alive(self) -> bool:
        """Tell whether all threads go on."""
        return all(thread.is_alive() for thread in self.threads)

    def drain(self) -> None:
        """Give all jobs back at once. What is being worked on now is worked on again by whoever takes them."""
        self.stop.set()
        self.news.set()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def run(self) -> None:
        """Work on one job after the other."""
        while not self.stop.is_set():
            self.news.clear()
            try:
                if self.run_once():
                    continue
            except OSError as error:
                logger.error("jobs: %s; trying again", error)
            self.news.wait(self.poll_seconds)

    def run_once(self) -> bool:
        """Work on one job until it ends, or is given back; tell whether there was one."""
        self.sweep()
        claimed = self.claim()
        if claimed is None:
            return False
        folder, lease = claimed
        with lease.kept():
            try:
                self.work_off(folder, lease)
            except OSError as error:
                self.judge(folder, error)
        return True

    def claim(self) -> tuple[JobFolder, Lease] | None:
        """Take the oldest job that nobody works on."""
        with self.claiming:
            now = time.monotonic()
            self.shunned = {name: until for name, until in self.shunned.items() if until > now}
            folders = [folder for folder in self.store.list_open() if folder.record.job not in self.shunned]
            names = {folder.record.job for folder in folders}
            self.watched = {name: lease for name, lease in self.watched.items() if name in names}
            for folder in folders:
                lease = self.watched.setdefault(
                    folder.record.job, Lease(folder.path, timeout_seconds=self.lease_seconds)
                )
                try:
                    # A job that may have killed two is not handed on at once to the next: they come back meanwhile.
                    if lease.try_take(patient=lease.count_lost() >= SUSPICIOUS_DEATHS):
                        del self.watched[folder.record.job]
                        return folder, lease
                except OSError as error:
                    if not isinstance(error, FileNotFoundError):
                        logger.warning("job %s cannot be taken: %s", folder.record.job, error)
        return None

    def work_off(self, folder: JobFolder, lease: Lease) -> None:
        """Work on the items that are not finished, and end the job after the last.

        Raises: OSError.
        """
        num_deaths = lease.count_lost()
        width = 1 if num_deaths >= SUSPICIOUS_DEATHS else self.parallel_items
        finished = folder.progress().finished
        # Due time, tries so far, index; what failed waits behind what is due.
        todo = [(0.0, 0, index) for index in range(1, folder.record.total + 1) if index not in finished]
        pending: dict[Future[ItemOutcome], tuple[int, int]] = {}
        source = folder.read_source()
        while todo or pending:
            if self.stop.is_set() or not lease.is_held or not folder.is_open:
                self.abandon(folder, pending, num_deaths)
                return
            while todo and len(pending) < width and todo[0][0] <= time.monotonic() and folder.is_open:
                _, tries, index = heapq.heappop(todo)
                if num_deaths and folder.note_attempt(index) >= self.max_attempts:
                    folder.write_result(index, failed("the work on this picture ended its process again and again"))
                    continue
                item = folder.read_item(index, source)
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
        """Leave the items that are being worked on; a shutdown is no fault of theirs."""
        for future, (index, _) in pending.items():
            future.cancel()
            if num_deaths and self.stop.is_set():
                folder.forget_attempt(index)

    def judge(self, folder: JobFolder, error: OSError) -> None:
        """Decide what becomes of a job whose files could not be read or written: it fails, or is tried again."""
        if not folder.is_open:
            return
        if error.errno in FULL_ERRORS:
            folder.end("failed", "the disk of the service is full; try again later")
        elif isinstance(error, FileNotFoundError):
            folder.end("failed", "pictures of the job are no longer there; send it again")
        else:
            # Others come first meanwhile.
            self.shunned[folder.record.job] = time.monotonic() + SHUN_SECONDS
            logger.error("job %s: %s; trying again later", folder.record.job, error)

    def sweep(self) -> None:
        """Remove what is expired, now and then."""
        now = time.monotonic()
        if now - self.swept_at > SWEEP_SECONDS:
            self.swept_at = now
            self.store.sweep()


def failed(detail: str) -> ItemOutcome:
    """Word the outcome of an item that the service could not work on."""
    problem = {
        "type": "urn:fusionray:problem:internal",
        "title": "Internal error",
        "status": 500,
        "detail": detail,
        "reason": "internal",
    }
    return ItemOutcome(problem=problem)
