"""Long work in a folder that replicas share: made by one, worked on by any, asked for by all, and gone after a while.

    folder/jobs/JOB/            one job (platform/fusionray/serving/jobs/folder.py), there as a whole or not at all
    folder/making/, folder/bin/ half-written and half-removed ones

What clients sent lies there in the clear until the job ends, and its results until it expires: whoever can read the
folder can see the pictures. Assumed of the file system: renames and exclusive creation are atomic; and of all nodes:
their clocks agree to within seconds, since jobs expire by them.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fusionray.config import Section, in_unit
from fusionray.errors import JobNotFinished, QuotaExceeded, StoreFull, UnknownJob
from fusionray.serving.jobs.folder import (
    ARCHIVE_NAME,
    DRAFTS_NAME,
    FULL_ERRORS,
    IDENTITY_NAME,
    OUTCOME_NAME,
    RECORD_NAME,
    SOURCE_NAME,
    JobFolder,
    JobOutcome,
    JobRecord,
)
from fusionray.storage.lease import Lease
from fusionray.storage.private_files import make_private_folder, remove_abandoned, remove_tree, sync_folder, write_new

JobState = Literal["queued", "running", "done", "failed", "cancelled"]

# Told to who has too many jobs open: when to look again.
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
        default=16 * 2**30, ge=1, description="Largest size of the job store; further jobs are refused."
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
    """How a job stands: `done` items have a picture, `failed` ones a problem, the others are to come."""

    job: str
    state: JobState
    total: int
    done: int
    failed: int
    created_at: float
    expires_at: float
    reason: str | None = None


class JobStore:
    """Make, find and remove jobs. All methods block on files, and may be called by many threads at once."""

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
        self.jobs, self.making, self.bin = (make_private_folder(folder / name) for name in ("jobs", DRAFTS_NAME, "bin"))
        self.ttl_seconds = ttl_seconds
        self.max_jobs = max_jobs
        self.max_open_jobs = max_open_jobs
        self.max_bytes = max_bytes
        self.wall_clock = wall_clock
        # Neither changes once it is there; names that are gone are dropped by the next scan.
        self.lock = threading.Lock()
        self.known: dict[str, JobFolder] = {}
        self.known_ended: dict[str, JobOutcome] = {}

    def create(
        self, owner: str, options: dict[str, Any], source: bytes | str, targets: Sequence[bytes | Path]
    ) -> JobStatus:
        """Make a job of a source, as bytes or as the handle of an identity, and its targets, as bytes or files to copy.

        Raises: QuotaExceeded if too many of this owner are not finished; StoreFull if too many are there, or the disk
            is full.
        """
        num_bytes = sum(target.stat().st_size if isinstance(target, Path) else len(target) for target in targets)
        num_bytes += len(source)
        self.check_room(owner, num_bytes)
        job = f"job_{secrets.token_hex(16)}"
        record = JobRecord(job, owner, options, len(targets), num_bytes, self.wall_clock())
        draft = make_private_folder(self.making / job)
        try:
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
        """Write all that a job begins with."""
        for name in ("targets", "results"):
            make_private_folder(draft / name)
        for index, target in enumerate(targets, 1):
            write_new(draft / "targets" / f"{index:04d}", target if isinstance(target, bytes) else target.read_bytes())
        if isinstance(source, str):
            write_new(draft / IDENTITY_NAME, source.encode())
        else:
            write_new(draft / SOURCE_NAME, source)
        write_new(draft / RECORD_NAME, json.dumps(asdict(record)).encode())
        JobFolder(draft, record).reserve()

    def status(self, job: str, owner: str) -> JobStatus:
        """Tell how a job stands.

        Raises: UnknownJob.
        """
        return self.describe(self.find(job, owner))

    def result(self, job: str, owner: str) -> Path:
        """Give the archive of a job that is done; whoever has opened it can read it even if it is removed meanwhile.

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
        """End a job that has not ended; a runner notices before its next item.

        Raises: UnknownJob.
        """
        folder = self.find(job, owner)
        folder.end("cancelled")
        return self.status(job, owner)

    def remove(self, job: str, owner: str) -> None:
        """Remove a job with all its files; a runner notices before its next item.

        Raises: UnknownJob.
        """
        if not remove_tree(self.find(job, owner).path, self.bin):
            raise unknown()

    def list_jobs(self, owner: str) -> list[JobStatus]:
        """Tell how all jobs of an owner stand, the oldest first."""
        found = []
        for folder in self.scan():
            if folder.record.owner == owner:
                with contextlib.suppress(UnknownJob):
                    found.append(self.describe(folder))
        return found

    def list_open(self) -> list[JobFolder]:
        """List the jobs that have not ended, the oldest first."""
        return [folder for folder in self.scan() if self.find_ended(folder) is None]

    def sweep(self) -> int:
        """Remove expired jobs, what ended jobs need no more, and what dead processes left; give the number of jobs."""
        num_removed = 0
        for folder in self.scan():
            if self.expiry(folder) <= self.wall_clock():
                num_removed += remove_tree(folder.path, self.bin)
            elif self.find_ended(folder) is not None:
                folder.clean()
        remove_abandoned(self.making)
        remove_abandoned(self.bin)
        return num_removed

    def find(self, job: str, owner: str) -> JobFolder:
        """Find a job of an owner; what cannot be an id never reaches the disk.

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
        """Gather how a job stands. A job of a runner that died is running until another takes it.

        Raises: UnknownJob if it is removed meanwhile.
        """
        record, ended = folder.record, self.find_ended(folder)
        state: JobState = "queued"
        if ended is None:
            try:
                progress = folder.progress()
                counts = len(progress.done), len(progress.failed)
                if Lease(folder.path, timeout_seconds=0.0).look().is_held:
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
        """Tell when a job is over: a while after it has ended, or was made."""
        ended = self.find_ended(folder)
        return (ended.ended_at if ended else folder.record.created_at) + self.ttl_seconds

    def find_ended(self, folder: JobFolder) -> JobOutcome | None:
        """Tell how a job ended, if it has; what was read once is not read again."""
        name = folder.record.job
        ended = self.known_ended.get(name) or folder.ended
        if ended is not None:
            self.known_ended[name] = ended
        return ended

    def scan(self) -> list[JobFolder]:
        """Look which jobs are there, the oldest first."""
        with self.lock:
            names = {path.name for path in self.jobs.iterdir()}
            for gone in {*self.known, *self.known_ended} - names:
                self.known.pop(gone, None)
                self.known_ended.pop(gone, None)
            for name in names - self.known.keys():
                # One that was removed a moment ago, or holds no record that can be read.
                with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
                    self.known[name] = JobFolder.read(self.jobs / name)
            return sorted(self.known.values(), key=lambda folder: (folder.record.created_at, folder.record.job))

    def check_room(self, owner: str, num_bytes: int) -> None:
        """Refuse a job that is one too many.

        Raises: QuotaExceeded, StoreFull.
        """
        folders = self.scan()
        num_open = sum(folder.record.owner == owner and self.find_ended(folder) is None for folder in folders)
        held_bytes = sum(folder.record.num_bytes for folder in folders)
        if num_open >= self.max_open_jobs:
            detail = f"{num_open} jobs of this key are not finished; wait for one, or delete one"
            raise QuotaExceeded("open_jobs", OPEN_JOB_SECONDS, detail)
        if len(folders) >= self.max_jobs or held_bytes + num_bytes > self.max_bytes:
            raise StoreFull(
                f"{len(folders)} jobs with {held_bytes} bytes are stored, of at most {self.max_jobs} with "
                f"{self.max_bytes} bytes; delete some, or wait until some expire"
            )


def unknown() -> UnknownJob:
    """Word the one answer for every job that cannot be had, whatever the reason."""
    return UnknownJob("no such job; it may have expired")
