"""The files of one job. Each change is one rename, so that it has happened or has not, whoever dies.

    job.json              whose it is and what is asked; never changes
    source or identity    the picture or the handle that was sent, until the job ends
    targets/0001          the pictures that were sent, until the job ends
    results/0001.done     one outcome (platform/fusionray/serving/jobs/items.py); .failed if it is a problem
    attempts/0001         a byte for each try that may have ended a process
    lease-000001          who works on it (fusionray/storage/lease.py)
    reserve/ended.json    blanks: room to say how the job ended on a disk that is full
    outcome/ended.json    how it ended, with result.zip if all went well: the first outcome that comes stays

What is done twice is harmless: a result is replaced by its like, and of two outcomes one cannot be renamed into place.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fusionray.serving.jobs.items import ItemOutcome, JobItem, write_archive
from fusionray.storage.private_files import FILE_MODE, make_private_folder, sync_folder, write_new, write_private

EndState = Literal["done", "failed", "cancelled"]

DRAFTS_NAME = "making"
RECORD_NAME = "job.json"
SOURCE_NAME = "source"
IDENTITY_NAME = "identity"
OUTCOME_NAME = "outcome"
RESERVE_NAME = "reserve"
ENDED_NAME = "ended.json"
ARCHIVE_NAME = "result.zip"
RESERVED_BYTES = 1024
LONGEST_REASON = 300
FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class JobRecord:
    """What a job was made with."""

    job: str
    owner: str
    options: dict[str, Any]
    total: int
    num_bytes: int
    created_at: float


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended."""

    state: EndState
    done: int
    failed: int
    ended_at: float
    reason: str | None = None


@dataclass(frozen=True)
class Progress:
    """Which items of a job are finished, by index: a picture wins over a problem that came of the same item."""

    done: frozenset[int]
    failed: frozenset[int]

    @property
    def finished(self) -> frozenset[int]:
        """Give all indices that need no work any more."""
        return self.done | self.failed


class JobFolder:
    """Read and write the files of a job that is there.

    Raises: FileNotFoundError from any method once it is removed.
    """

    def __init__(self, path: Path, record: JobRecord) -> None:
        self.path = path
        self.record = record
        self.drafts = path.parents[1] / DRAFTS_NAME

    @classmethod
    def read(cls, path: Path) -> JobFolder:
        """Open the folder of a job.

        Raises: FileNotFoundError.
        """
        return cls(path, JobRecord(**json.loads((path / RECORD_NAME).read_bytes())))

    @property
    def ended(self) -> JobOutcome | None:
        """Tell how the job ended, if it has."""
        try:
            return JobOutcome(**json.loads((self.path / OUTCOME_NAME / ENDED_NAME).read_bytes()))
        except FileNotFoundError:
            return None

    @property
    def is_open(self) -> bool:
        """Tell whether the job is there and has not ended."""
        return self.ended is None and (self.path / RECORD_NAME).exists()

    def read_source(self) -> bytes | str:
        """Read the source picture, or the handle of an identity."""
        try:
            return (self.path / IDENTITY_NAME).read_text()
        except FileNotFoundError:
            return (self.path / SOURCE_NAME).read_bytes()

    def read_item(self, index: int, source: bytes | str) -> JobItem:
        """Gather what the work on an item needs."""
        target = (self.path / "targets" / f"{index:04d}").read_bytes()
        picture, identity = (None, source) if isinstance(source, str) else (source, None)
        return JobItem(self.record.job, self.record.owner, index, self.record.options, target, picture, identity)

    def progress(self) -> Progress:
        """Look which items are finished."""
        found: dict[str, set[int]] = {"done": set(), "failed": set()}
        for name in os.listdir(self.path / "results"):
            index, _, kind = name.partition(".")
            if kind in found and index.isdigit():
                found[kind].add(int(index))
        return Progress(frozenset(found["done"]), frozenset(found["failed"] - found["done"]))

    def write_result(self, index: int, outcome: ItemOutcome) -> None:
        """Finish an item."""
        kind = "done" if outcome.problem is None else "failed"
        write_private(self.path / "results" / f"{index:04d}.{kind}", outcome.pack())

    def read_results(self, progress: Progress) -> Iterator[tuple[int, ItemOutcome]]:
        """Read what came of the items, in their order, one in memory at a time."""
        for index in sorted(progress.finished):
            kind = "done" if index in progress.done else "failed"
            yield index, ItemOutcome.unpack((self.path / "results" / f"{index:04d}.{kind}").read_bytes())

    def note_attempt(self, index: int) -> int:
        """Note that an item is tried; give how often it was before."""
        path = make_private_folder(self.path / "attempts") / f"{index:04d}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE), "ab") as file:
            before = os.fstat(file.fileno()).st_size
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        return before

    def forget_attempt(self, index: int) -> None:
        """Forget the tries of an item that a shutdown interrupted."""
        (self.path / "attempts" / f"{index:04d}").unlink(missing_ok=True)

    def reserve(self) -> None:
        """Set room aside in which `end` can be written whatever the disk holds by then."""
        write_new(make_private_folder(self.path / RESERVE_NAME) / ENDED_NAME, b" " * RESERVED_BYTES)

    def end(self, state: EndState, reason: str | None = None) -> bool:
        """End the job without a result; tell whether this was how it ended. Needs no room on the disk."""
        draft = self.drafts / uuid.uuid4().hex
        try:
            progress = self.progress()
            # The reserve is taken first, so that two who end the job never write into the same file.
            (self.path / RESERVE_NAME).rename(draft)
        except FileNotFoundError:
            if not self.is_open:
                return False
            # Somebody took the reserve and died.
            progress = self.progress()
            make_private_folder(draft)
        counts = len(progress.done), len(progress.failed)
        ended = JobOutcome(state, *counts, time.time(), reason and reason[:LONGEST_REASON])
        with os.fdopen(os.open(draft / ENDED_NAME, os.O_WRONLY | os.O_CREAT, FILE_MODE), "wb") as file:
            file.write(json.dumps(asdict(ended)).encode().ljust(RESERVED_BYTES))
        return self.publish(draft)

    def finish(self) -> bool:
        """End the job with the archive of its results; tell whether this was how it ended."""
        draft = make_private_folder(self.drafts / uuid.uuid4().hex)
        try:
            progress = self.progress()
            write_archive(draft / ARCHIVE_NAME, self.read_results(progress))
            sync_file(draft / ARCHIVE_NAME)
            ended = JobOutcome("done", len(progress.done), len(progress.failed), time.time())
            write_private(draft / ENDED_NAME, json.dumps(asdict(ended)).encode())
        except BaseException as error:
            shutil.rmtree(draft, ignore_errors=True)
            if isinstance(error, FileNotFoundError) and not self.is_open:
                return False
            raise
        return self.publish(draft)

    def publish(self, draft: Path) -> bool:
        """Make a draft the outcome, unless there is one, and then remove what was sent and made for it."""
        try:
            # A folder is never renamed over another that holds something.
            draft.rename(self.path / OUTCOME_NAME)
            sync_folder(self.path)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
            return False
        self.clean()
        return True

    def clean(self) -> None:
        """Remove what was sent for a job that has ended: what is left of it is in the archive."""
        for name in ("targets", "results", "attempts", RESERVE_NAME):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (SOURCE_NAME, IDENTITY_NAME):
            (self.path / name).unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Make a file private, and safe from a power cut."""
    with open(path, "rb") as file:
        os.fchmod(file.fileno(), FILE_MODE)
        os.fsync(file.fileno())
