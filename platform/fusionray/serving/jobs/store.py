"""The store of jobs: a folder that replicas share. Any replica may create, process, report or remove a job.

    folder/jobs/JOB/            one job (platform/fusionray/serving/jobs/folder.py), complete at any time
    folder/tmp/, folder/trash/  partly written and partly removed jobs

The clients' pictures lie there unencrypted until the job ends, and the results until the job expires: whoever can read
the folder can see them. The file system must rename, and create files exclusively, in an atomic way. The clocks of all
nodes must agree to within seconds, because jobs expire by them.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fusionray.config import Section, in_unit
from fusionray.errors import JobNotFinished, QuotaExceeded, StoreFull, UnknownJob
from fusionray.serving.jobs.folder import (
    ARCHIVE_NAME,
    FULL_ERRORS,
    IDENTITY_NAME,
    OUTCOME_NAME,
    RECORD_NAME,
    SOURCE_NAME,
    JobFolder,
    JobOutcome,
    JobRecord,
)
from fusionray.storage.atomic_files import (
    TMP_NAME,
    TRASH_NAME,
    create_file,
    make_private_folder,
    remove_abandoned_folders,
    remove_tree,
    sync_folder,
)
from fusionray.storage.lease import Lease

JobState = Literal["queued", "running", "done", "failed", "cancelled"]

# When a client with too many open jobs may try again.
OPEN_JOB_SECONDS = 10.0
JOB_ID = re.compile(r"job_[0-9a-f]{32}")


class JobConfig(Section):
    """Where jobs are stored, for how long, how many, and how replicas work on them."""

    folder: str = Field(default="runs/jobs", description="Folder of the jobs; every replica must reach it.")
    ttl_seconds: float = Field(default=86_400.0, gt=0, description="Time after its end when a job is deleted.")
    max_jobs: int = Field(default=1000, ge=1, description="Largest number of jobs; further ones are refused.")
    max_open_jobs: int = Field(
        default=20, ge=1, description="Unfinished jobs of one API key; further ones are refused."
    )
    max_bytes: int = Field(
        default=16 * 2**30,
        ge=1,
        description="Largest size of the job store, results included; further jobs are refused.",
    )
    parallel_jobs: int = Field(default=1, ge=1, description="Jobs that a replica works on at once.")
    parallel_items: int = Field(
        default=4,
        ge=1,
        description="Pictures of one job that a replica works on at once.",
        json_schema_extra=in_unit("pictures"),
    )
    lease_seconds: float = Field(
        default=15.0,
        gt=0,
        description="Time without a heartbeat after which another replica takes over a job; at once if its process "
        "died on the same machine.",
    )
    poll_seconds: float = Field(default=1.0, gt=0, description="Time between two looks of an idle replica for work.")
    max_attempts: int = Field(default=3, ge=1, description="Attempts at a picture before it counts as failed.")


@dataclass(frozen=True)
class JobStatus:
    """State of a job: `done` items have a picture, `failed` ones a problem; the others are not finished."""

    job: str
    state: JobState
    total: int
    done: int
    failed: int
    created_at: float
    expires_at: float
    reason: str | None = None


class JobStore:
    """Create, find and remove jobs. The methods block on files, and may run in many threads at once."""

    def __init__(
        self,
        folder: Path,
        ttl_seconds: float,
        max_jobs: int = 1000,
        *,
        max_open_jobs: int = 20,
        max_bytes: int = 16 * 2**30,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        make_private_folder(folder)
        self.jobs, self.tmp, self.trash = (
            make_private_folder(folder / name) for name in ("jobs", TMP_NAME, TRASH_NAME)
        )
        self.ttl_seconds = ttl_seconds
        self.max_jobs = max_jobs
        self.max_open_jobs = max_open_jobs
        self.max_bytes = max_bytes
        self.wall_clock = wall_clock
        # A record and an outcome never change once written; `scan` drops those of removed jobs.
        self.lock = threading.Lock()
        self.known: dict[str, JobFolder] = {}
        self.known_ended: dict[str, JobOutcome] = {}

    def create(
        self, owner: str, options: dict[str, Any], source: bytes | str, targets: Sequence[bytes | Path]
    ) -> JobStatus:
        """Create a job. The source is a picture or the handle of an identity; targets are pictures, or files to copy.

        Raises: QuotaExceeded if the owner has too many open jobs; StoreFull if the store or its disk is full.
        """
        num_bytes = sum(target.stat().st_size if isinstance(target, Path) else len(target) for target in targets)
        num_bytes += len(source)
        self.check_room(owner, num_bytes)
        job = f"job_{secrets.token_hex(16)}"
        record = JobRecord(job, owner, options, len(targets), num_bytes, self.wall_clock())
        draft = self.tmp / job
        try:
            make_private_folder(draft)
            self.fill(draft, record, source, targets)
            draft.rename(self.jobs / job)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if error.errno not in FULL_ERRORS:
                raise
            raise StoreFull(f"the job could not be stored ({error.strerror}); try again later") from error
        sync_folder(self.jobs)
        return self.status(job, owner)

    def fill(self, draft: Path, record: JobRecord, source: bytes | str, targets: Sequence[bytes | Path]) -> None:
        """Write the initial files of a job."""
        for name in ("targets", "results"):
            make_private_folder(draft / name)
        for index, target in enumerate(targets, 1):
            create_file(
                draft / "targets" / f"{index:04d}", target if isinstance(target, bytes) else target.read_bytes()
            )
        if isinstance(source, str):
            create_file(draft / IDENTITY_NAME, source.encode())
        else:
            create_file(draft / SOURCE_NAME, source)
        create_file(draft / RECORD_NAME, json.dumps(asdict(record)).encode())
        JobFolder(draft, record).reserve()

    def status(self, job: str, owner: str) -> JobStatus:
        """Return the state of a job.

        Raises: UnknownJob.
        """
        return self.describe(self.find(job, owner))

    def result(self, job: str, owner: str) -> Path:
        """Return the archive of a job that is done; once opened, it stays readable even if the job is removed.

        Raises: UnknownJob; JobNotFinished naming the state.
        """
        folder = self.find(job, owner)
        ended = folder.ended
        if ended is None or ended.state != "done":
            state = self.describe(folder).state
            reason = f" ({ended.reason})" if ended and ended.reason else ""
            raise JobNotFinished(f"the job is {state}{reason}: a result is there once it is done")
        return folder.path / OUTCOME_NAME / ARCHIVE_NAME

    def cancel(self, job: str, owner: str) -> JobStatus:
        """End an open job; its worker notices before the next item.

        Raises: UnknownJob.
        """
        folder = self.find(job, owner)
        folder.end("cancelled")
        return self.status(job, owner)

    def remove(self, job: str, owner: str) -> None:
        """Remove a job with all its files; its worker notices before the next item.

        Raises: UnknownJob.
        """
        if not remove_tree(self.find(job, owner).path, self.trash):
            raise unknown()

    def list_jobs(self, owner: str) -> list[JobStatus]:
        """Return the states of an owner's jobs, the oldest first."""
        found = []
        for folder in self.scan():
            if folder.record.owner == owner:
                with contextlib.suppress(UnknownJob):
                    found.append(self.describe(folder))
        return found

    def list_open(self) -> list[JobFolder]:
        """List the open jobs: the oldest of each owner, then the second of each, and so on, the older ones first.

        An owner of many jobs thus does not keep the others waiting.
        """
        ranks: Counter[str] = Counter()
        ranked = []
        for folder in self.scan():
            if self.find_ended(folder) is None:
                ranked.append((ranks[folder.record.owner], folder))
                ranks[folder.record.owner] += 1
        return [folder for _, folder in sorted(ranked, key=lambda each: each[0])]

    def sweep(self) -> int:
        """Remove expired jobs, and leftovers of ended jobs and dead processes; return the number of removed jobs."""
        num_removed = 0
        for folder in self.scan():
            if self.expiry(folder) <= self.wall_clock():
                num_removed += remove_tree(folder.path, self.trash)
            elif self.find_ended(folder) is not None:
                folder.clean()
        remove_abandoned_folders(self.tmp)
        remove_abandoned_folders(self.trash)
        return num_removed

    def find(self, job: str, owner: str) -> JobFolder:
        """Find a job of an owner; a malformed ID never reaches the disk.

        Raises: UnknownJob.
        """
        if not JOB_ID.fullmatch(job):
            raise unknown()
        try:
            folder = JobFolder.read(self.jobs / job)
        except (FileNotFoundError, ValueError, TypeError):
            raise unknown() from None
        if folder.record.owner != owner or self.expiry(folder) <= self.wall_clock():
            raise unknown()
        return folder

    def describe(self, folder: JobFolder) -> JobStatus:
        """Build the state of a job. The job of a dead worker counts as running until another worker takes it.

        Raises: UnknownJob if the job is removed in the meantime.
        """
        record, ended = folder.record, self.find_ended(folder)
        state: JobState = "queued"
        if ended is None:
            try:
                progress = folder.progress()
                counts = len(progress.done), len(progress.failed)
                if Lease(folder.path, timeout_seconds=0.0).read_state().is_held:
                    state = "running"
            except FileNotFoundError:
                if self.find_ended(folder) is None:
                    raise unknown() from None
                return self.describe(folder)
        else:
            state, counts = ended.state, (ended.done, ended.failed)
        reason = ended.reason if ended else None
        return JobStatus(record.job, state, record.total, *counts, record.created_at, self.expiry(folder), reason)

    def expiry(self, folder: JobFolder) -> float:
        """Return when a job expires (seconds since 1970): `ttl_seconds` after its end, or after its creation."""
        ended = self.find_ended(folder)
        return (ended.ended_at if ended else folder.record.created_at) + self.ttl_seconds

    def find_ended(self, folder: JobFolder) -> JobOutcome | None:
        """Return how a job ended, cached after the first read; None while it is open."""
        name = folder.record.job
        ended = self.known_ended.get(name) or folder.ended
        if ended is not None:
            self.known_ended[name] = ended
        return ended

    def scan(self) -> list[JobFolder]:
        """List the stored jobs, the oldest first."""
        with self.lock:
            names = {path.name for path in self.jobs.iterdir()}
            for gone in {*self.known, *self.known_ended} - names:
                self.known.pop(gone, None)
                self.known_ended.pop(gone, None)
            for name in names - self.known.keys():
                # A job that was just removed, or whose record is unreadable.
                with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
                    self.known[name] = JobFolder.read(self.jobs / name)
            return sorted(self.known.values(), key=lambda folder: (folder.record.created_at, folder.record.job))

    def check_room(self, owner: str, num_bytes: int) -> None:
        """Refuse a job that exceeds a limit.

        Raises: QuotaExceeded, StoreFull.
        """
        folders = self.scan()
        num_open = sum(folder.record.owner == owner and self.find_ended(folder) is None for folder in folders)
        held_bytes = sum(map(self.count_bytes, folders))
        if num_open >= self.max_open_jobs:
            detail = f"{num_open} jobs of this key are not finished; wait for one, or delete one"
            raise QuotaExceeded("open_jobs", OPEN_JOB_SECONDS, detail)
        if len(folders) >= self.max_jobs or held_bytes + 2 * num_bytes > self.max_bytes:
            raise StoreFull(
                f"{len(folders)} jobs with {held_bytes} bytes are stored, of at most {self.max_jobs} with "
                f"{self.max_bytes} bytes; delete some, or wait until some expire"
            )

    def count_bytes(self, folder: JobFolder) -> int:
        """Count what a job takes: its pictures and as much for its results; once it has ended, its archive."""
        if self.find_ended(folder) is None:
            return 2 * folder.record.num_bytes
        try:
            return (folder.path / OUTCOME_NAME / ARCHIVE_NAME).stat().st_size
        except FileNotFoundError:  # It failed, was cancelled, or is gone.
            return 0


def unknown() -> UnknownJob:
    """Build the one error for every job that is not available, whatever the reason."""
    return UnknownJob("no such job; it may have expired")
