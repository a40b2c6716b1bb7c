"""Hold open jobs: one holder in each replica for each kind of job. If a holder dies, another continues its jobs."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod

from fusionray.errors import NotDecrypted
from fusionray.serving.jobs.folder import FULL_ERRORS, JobFolder
from fusionray.serving.jobs.store import JobStore
from fusionray.storage.lease import Lease

logger = logging.getLogger("ray.serve")

# How soon a holder notices a shutdown or a lost lease while it works.
NOTICE_SECONDS = 0.1
SWEEP_SECONDS = 60.0
BACKOFF_SECONDS = 30.0
# After so many holders died while they held a job, it is worked on with care.
MAX_PARALLEL_DEATHS = 2


class JobHolder(ABC):
    """Take jobs from a store, each in a thread that processes it, until `drain`; `films`: those of films, or others."""

    def __init__(
        self, store: JobStore, *, films: bool, parallel_jobs: int, lease_seconds: float, poll_seconds: float
    ) -> None:
        self.store = store
        self.films = films
        self.lease_seconds = lease_seconds
        self.poll_seconds = poll_seconds
        self.stop = threading.Event()
        self.woken = threading.Event()
        self.claiming = threading.Lock()
        self.leases: dict[str, Lease] = {}
        self.backoff: dict[str, float] = {}
        self.swept_at = float("-inf")
        self.threads = [threading.Thread(target=self.run, name="job", daemon=True) for _ in range(parallel_jobs)]

    @abstractmethod
    def process(self, folder: JobFolder, lease: Lease) -> None:
        """Work on a job until it ends, `stop` is set or the lease is lost.

        Raises: OSError; NotDecrypted.
        """

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
        """Release all jobs at once, for the holders of other replicas."""
        self.stop.set()
        self.woken.set()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()

    def run(self) -> None:
        """Process one job after the other."""
        while not self.stop.is_set():
            self.woken.clear()
            try:
                if self.run_once():
                    continue
            except OSError as error:
                logger.error("jobs: %s; trying again", error)
            except Exception:
                # One job that nobody foresaw must not end the work on all others.
                logger.exception("jobs: an unexpected error; trying again")
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
            except Exception:
                self.back_off(folder, BACKOFF_SECONDS)
                raise
        return True

    def claim(self) -> tuple[JobFolder, Lease] | None:
        """Take the first open job that no worker holds."""
        with self.claiming:
            now = time.monotonic()
            self.backoff = {name: until for name, until in self.backoff.items() if until > now}
            folders = [
                folder for folder in self.store.list_open(films=self.films) if folder.record.job not in self.backoff
            ]
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

    def handle_file_error(self, folder: JobFolder, error: OSError) -> None:
        """Fail a job whose files could not be read or written, or try it again later."""
        if not folder.is_open:
            return
        if error.errno in FULL_ERRORS:
            folder.end("failed", "the disk of the service is full; try again later")
        elif isinstance(error, FileNotFoundError):
            folder.end("failed", "pictures of the job are no longer there; send it again")
        else:
            self.back_off(folder, BACKOFF_SECONDS)
            logger.error("job %s: %s; trying again later", folder.record.job, error)

    def back_off(self, folder: JobFolder, seconds: float) -> None:
        """Try a job again after some seconds; other jobs come first meanwhile."""
        with self.claiming:
            self.backoff[folder.record.job] = time.monotonic() + seconds

    def sweep(self) -> None:
        """Remove expired jobs, once in `SWEEP_SECONDS`."""
        now = time.monotonic()
        if now - self.swept_at > SWEEP_SECONDS:
            self.swept_at = now
            self.store.sweep()
