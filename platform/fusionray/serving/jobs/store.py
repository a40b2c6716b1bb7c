"""The store of jobs: a folder that replicas share. Any replica may create, process, report or remove a job.

    folder/jobs/JOB/            one job (platform/fusionray/serving/jobs/folder.py), complete at any time
    folder/tmp/, folder/trash/  partly written and partly removed jobs
    folder/key-check            tells whether a replica has the key of the service

The clients' pictures lie there unencrypted until the job ends, and the results until the job expires: whoever can read
the folder can see them. Handles, consent tokens, URIs and addresses of webhooks are encrypted.

The file system must rename, and create files exclusively, in an atomic way. The clocks of all nodes must agree to
within seconds, because jobs expire by them.
"""

from __future__ import annotations

import errno
import secrets
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fusionray.errors import JobEnded, KeyReused, QuotaExceeded, StoreFull, UnknownJob
from fusionray.serving.jobs.films import name_film_folder
from fusionray.serving.jobs.folder import FULL_ERRORS, JobFolder
from fusionray.serving.jobs.new_job import NewJob, write_job
from fusionray.serving.jobs.reader import JobReader, JobStatus, unknown
from fusionray.serving.jobs.record import JobRecord
from fusionray.serving.jobs.service_key import default_key_file, open_key
from fusionray.storage.atomic_files import (
    TMP_NAME,
    TRASH_NAME,
    make_private_folder,
    remove_abandoned_folders,
    remove_tree,
    sync_folder,
)

# When a client with too many open jobs may try again.
OPEN_JOB_SECONDS = 10.0
# What a rename raises if a job of the same name exists.
EXISTS_ERRORS = (errno.ENOTEMPTY, errno.EEXIST)


@dataclass(frozen=True)
class CreatedJob:
    """The state of a job, and whether this request made it; otherwise an earlier one with the same key did."""

    status: JobStatus
    is_new: bool


class JobStore(JobReader):
    """Create, find and remove jobs. The methods block on files, and may run in many threads at once.

    Raises: ConfigInvalid for a key file that cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        ttl_seconds: float,
        max_jobs: int = 1000,
        *,
        max_open_jobs: int = 20,
        max_bytes: int = 16 * 2**30,
        key_file: Path | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        make_private_folder(folder)
        self.key = open_key(key_file or default_key_file(folder), folder)
        super().__init__(make_private_folder(folder / "jobs"), ttl_seconds, wall_clock)
        self.tmp, self.trash = (make_private_folder(folder / name) for name in (TMP_NAME, TRASH_NAME))
        self.max_jobs = max_jobs
        self.max_open_jobs = max_open_jobs
        self.max_bytes = max_bytes

    def create(self, owner: str, new: NewJob) -> CreatedJob:
        """Create a job, or find the one that the same request with the same idempotency key has created.

        Raises: KeyReused for another request with the same key; QuotaExceeded if the owner has too many open jobs;
            StoreFull if the store or its disk is full.
        """
        if repeated := self.find_repeated(owner, new):
            return CreatedJob(repeated, is_new=False)
        num_bytes = new.num_bytes
        self.check_room(owner, num_bytes)
        job = self.name_job(owner, new.idempotency_key)
        film = None if new.film_bytes is None else name_film_folder()
        record = JobRecord(
            job, owner, new.options, new.total, num_bytes, self.wall_clock(), new.fingerprint, new.host, film
        )
        draft = self.tmp / f"{job}.{uuid.uuid4().hex}"
        try:
            write_job(JobFolder(draft, record), new, self.key)
            is_new = self.publish(draft, record)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            raise StoreFull(f"the job could not be stored ({error.strerror}); try again later") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if not is_new and (repeated := self.find_repeated(owner, new)):
            return CreatedJob(repeated, is_new=False)
        sync_folder(self.jobs)
        return CreatedJob(self.status(job, owner), is_new=True)

    def name_job(self, owner: str, idempotency_key: str | None) -> str:
        """Choose the ID of a new job: random, or the same in every replica for an owner's key.

        The folder of that name can be created only once, so two requests with one key never make two jobs.
        """
        if idempotency_key is None:
            return f"job_{secrets.token_hex(16)}"
        return f"job_{self.key.name(owner, idempotency_key)[:32]}"

    def find_repeated(self, owner: str, new: NewJob) -> JobStatus | None:
        """Find the job that an earlier request with the same idempotency key has created.

        Raises: KeyReused if that was another request.
        """
        if new.idempotency_key is None:
            return None
        try:
            folder = self.find(self.name_job(owner, new.idempotency_key), owner)
            status = self.describe(folder)
        except UnknownJob:
            return None
        if folder.record.fingerprint != new.fingerprint:
            raise KeyReused(
                "this idempotency key came with another request before; send a new key, or the same request"
            )
        return status

    def publish(self, draft: Path, record: JobRecord) -> bool:
        """Make a draft a job; return whether it is the first of its name."""
        place = self.jobs / record.job
        for _ in range(2):
            try:
                draft.rename(place)
                return True
            except OSError as error:
                if error.errno not in EXISTS_ERRORS:
                    raise
            # A job that has expired makes room; one that has not stays.
            if self.is_expired(place):
                remove_tree(place, self.trash)
        return False

    def is_expired(self, place: Path) -> bool:
        """Tell whether the job in a folder has expired."""
        try:
            return self.expiry(JobFolder.read(place)) <= self.wall_clock()
        except FileNotFoundError:
            return True

    def cancel(self, job: str, owner: str) -> JobStatus:
        """End an open job; its worker notices before the next item. A second call changes nothing.

        Raises: UnknownJob; JobEnded if the job has ended otherwise.
        """
        folder = self.find(job, owner)
        folder.end("cancelled")
        status = self.status(job, owner)
        if status.state != "cancelled":
            raise JobEnded(f"the job is {status.state}: only an open job can be cancelled; DELETE removes it")
        return status

    def remove(self, job: str, owner: str) -> None:
        """Remove a job with all its files; its worker notices before the next item.

        Raises: UnknownJob.
        """
        if not remove_tree(self.find(job, owner).path, self.trash):
            raise unknown()

    def list_ended(self) -> list[JobFolder]:
        """List the jobs that have ended, the oldest first."""
        return [folder for folder in self.index.scan() if self.index.find_ended(folder) is not None]

    def list_open(self, *, films: bool = False) -> list[JobFolder]:
        """List the open jobs of pictures, or those of films: the oldest of each owner, then the second of each, and so
        on, the older ones first.

        An owner of many jobs thus does not keep the others waiting.
        """
        ranks: Counter[str] = Counter()
        ranked = []
        for folder in self.index.scan():
            if (folder.film is not None) == films and self.index.find_ended(folder) is None:
                ranked.append((ranks[folder.record.owner], folder))
                ranks[folder.record.owner] += 1
        return [folder for _, folder in sorted(ranked, key=lambda each: each[0])]

    def sweep(self) -> int:
        """Remove expired jobs, and leftovers of ended jobs and dead processes; return the number of removed jobs."""
        num_removed = 0
        for folder in self.index.scan():
            if self.expiry(folder) <= self.wall_clock():
                num_removed += remove_tree(folder.path, self.trash)
            elif self.index.find_ended(folder) is not None:
                folder.clean()
        remove_abandoned_folders(self.tmp)
        remove_abandoned_folders(self.trash)
        return num_removed

    def check_room(self, owner: str, num_bytes: int) -> None:
        """Refuse a job that exceeds a limit.

        Raises: QuotaExceeded, StoreFull.
        """
        folders = self.index.scan()
        num_open = sum(folder.record.owner == owner and self.index.find_ended(folder) is None for folder in folders)
        held_bytes = sum(map(self.index.count_bytes, folders))
        if num_open >= self.max_open_jobs:
            detail = f"{num_open} jobs of this key are not finished; wait for one, or delete one"
            raise QuotaExceeded("open_jobs", OPEN_JOB_SECONDS, detail)
        if len(folders) >= self.max_jobs or held_bytes + 2 * num_bytes > self.max_bytes:
            raise StoreFull(
                f"{len(folders)} jobs with {held_bytes} bytes are stored, of at most {self.max_jobs} with "
                f"{self.max_bytes} bytes; delete some, or wait until some expire"
            )
