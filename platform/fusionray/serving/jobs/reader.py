"""Read the jobs of a store: their states, results and items, for the owner of each alone."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fusionray.errors import JobNotFinished, UnknownItem, UnknownJob
from fusionray.serving.jobs.films import FilmProgress
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.index import JobIndex
from fusionray.serving.jobs.items import ItemOutcome
from fusionray.serving.jobs.webhooks import WebhookStatus, read_webhook
from fusionray.storage.lease import Lease

JobState = Literal["queued", "running", "done", "failed", "cancelled"]

JOB_ID = re.compile(r"job_[0-9a-f]{32}")


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
    ended_at: float | None = None
    reason: str | None = None
    webhook: WebhookStatus | None = None
    video: FilmProgress | None = None


class JobReader:
    """Find the jobs in a folder and tell how far they are. The methods block on files, and may run in many threads."""

    def __init__(self, jobs: Path, ttl_seconds: float, wall_clock: Callable[[], float] = time.time) -> None:
        self.jobs = jobs
        self.ttl_seconds = ttl_seconds
        self.wall_clock = wall_clock
        self.index = JobIndex(jobs)

    def status(self, job: str, owner: str) -> JobStatus:
        """Return the state of a job.

        Raises: UnknownJob.
        """
        return self.describe(self.find(job, owner))

    def result(self, job: str, owner: str) -> Path:
        """Return the archive, or the film, of a job that is done; once opened, it stays readable even if the job is
        removed.

        Raises: UnknownJob; JobNotFinished naming the state.
        """
        folder = self.find(job, owner)
        ended = folder.ended
        if ended is None or ended.state != "done":
            state = self.describe(folder).state
            reason = f" ({ended.reason})" if ended and ended.reason else ""
            raise JobNotFinished(f"the job is {state}{reason}: a result is there once it is done")
        if folder.film is None:
            return folder.archive
        try:
            return folder.film.find_result()
        except FileNotFoundError:
            raise unknown() from None

    def items(self, job: str, owner: str, first: int, limit: int) -> list[dict[str, Any]]:
        """Describe up to `limit` items of a job from number `first` on, as `results.json` does.

        An item that is not finished is "queued"; "cancelled" if the job has ended without it.

        Raises: UnknownJob.
        """
        folder = self.find(job, owner)
        indices = range(first, min(first + limit, folder.record.total + 1))
        try:
            found = {entry["index"]: entry for entry in folder.describe_items(indices)}
        except FileNotFoundError:
            raise unknown() from None
        left = "queued" if self.index.find_ended(folder) is None else "cancelled"
        return [found.get(index) or {"index": index, "status": left} for index in indices]

    def item(self, job: str, owner: str, index: int) -> ItemOutcome:
        """Return the outcome of an item, with its picture.

        Raises: UnknownJob; UnknownItem; JobNotFinished if the item is not finished, or the job ended without it.
        """
        folder = self.find(job, owner)
        if not 1 <= index <= folder.record.total:
            raise UnknownItem(f"the job has no picture {index}: its pictures are 1 to {folder.record.total}")
        outcome = folder.read_outcome(index)
        if outcome is None:
            ended = self.index.find_ended(folder)
            detail = "is not made yet; ask again" if ended is None else f"was not made: the job is {ended.state}"
            raise JobNotFinished(f"picture {index} {detail}")
        return outcome

    def list_jobs(
        self,
        owner: str,
        limit: int = 50,
        *,
        before: tuple[float, str] | None = None,
        state: JobState | None = None,
    ) -> list[JobStatus]:
        """Return the states of up to `limit` jobs of an owner, the newest first.

        `before` is the `created_at` and the ID of the last one of the page before, `state` selects.
        """
        found: list[JobStatus] = []
        for folder in reversed(self.index.scan()):
            record = folder.record
            is_older = before is None or (record.created_at, record.job) < before
            if record.owner != owner or not is_older or self.expiry(folder) <= self.wall_clock():
                continue
            with contextlib.suppress(UnknownJob):
                status = self.describe(folder)
                if state in (None, status.state):
                    found.append(status)
            if len(found) == limit:
                break
        return found

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
        record, ended = folder.record, self.index.find_ended(folder)
        if ended is not None and ended.state == "done":
            counts = ended.done, ended.failed
        else:
            # Of a job that ended otherwise, an item may be finished a moment after.
            try:
                progress = folder.progress()
                is_held = ended is None and Lease(folder.path, timeout_seconds=0.0).read_state().is_held
            except FileNotFoundError:
                if ended is not None or self.index.find_ended(folder) is None:
                    raise unknown() from None
                return self.describe(folder)
            counts = len(progress.done), len(progress.failed)
        return JobStatus(
            record.job,
            ended.state if ended else "running" if is_held else "queued",
            record.total,
            *counts,
            record.created_at,
            self.expiry(folder),
            ended.ended_at if ended else None,
            ended.reason if ended else None,
            read_webhook(folder),
            None if folder.film is None else folder.film.read_progress(),
        )

    def expiry(self, folder: JobFolder) -> float:
        """Return when a job expires (seconds since 1970): `ttl_seconds` after its end; an open job never does."""
        ended = self.index.find_ended(folder)
        return ended.ended_at + self.ttl_seconds if ended else math.inf


def unknown() -> UnknownJob:
    """Build the one error for every job that is not available, whatever the reason."""
    return UnknownJob("no such job; it may have expired")
