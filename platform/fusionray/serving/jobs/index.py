"""What a replica remembers of the stored jobs, so that it reads each record and each outcome once."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.record import JobOutcome


class JobIndex:
    """The jobs in a folder. A record and an outcome never change once written; `scan` drops those of removed jobs.

    The ID of a job with an idempotency key may come back after the job is removed, so its record is read again, and
    outcomes are remembered by `JobRecord.identity`.
    """

    def __init__(self, jobs: Path) -> None:
        self.jobs = jobs
        self.lock = threading.Lock()
        self.folders: dict[str, JobFolder] = {}
        self.ended: dict[tuple[str, float], JobOutcome] = {}
        self.result_bytes: dict[tuple[str, float], int] = {}

    def scan(self) -> list[JobFolder]:
        """List the stored jobs, the oldest first."""
        with self.lock:
            names = {path.name for path in self.jobs.iterdir()}
            self.folders = {name: folder for name, folder in self.folders.items() if name in names}
            for name in names:
                known = self.folders.get(name)
                if known is None or known.record.fingerprint is not None:
                    # A job that was just removed, whose record is unreadable, or what is no job at all.
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, TypeError):
                        self.folders[name] = JobFolder.read(self.jobs / name)
            for memory in (self.ended, self.result_bytes):
                for gone in [key for key in memory if key[0] not in names]:
                    del memory[gone]
            return sorted(self.folders.values(), key=lambda folder: (folder.record.created_at, folder.record.job))

    def find_ended(self, folder: JobFolder) -> JobOutcome | None:
        """Return how a job ended, cached after the first read; None while it is open."""
        key = folder.record.identity
        ended = self.ended.get(key) or folder.ended
        if ended is not None:
            with self.lock:
                self.ended[key] = ended
        return ended

    def count_bytes(self, folder: JobFolder) -> int:
        """Count what a job takes: its pictures and as much for its results; once it has ended, its results."""
        if self.find_ended(folder) is None:
            return 2 * folder.record.num_bytes
        key = folder.record.identity
        known = self.result_bytes.get(key)
        if known is None:
            known = folder.count_result_bytes()
            with self.lock:
                self.result_bytes[key] = known
        return known
