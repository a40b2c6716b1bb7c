"""The files of one job. Each change is one rename, so it happens completely or not at all, whichever process dies.

    job.json              owner and options; never changes
    source or identity    source picture or handle, until the job ends
    targets/0001          target pictures, until the job ends
    results/0001.done     outcome of one item (platform/fusionray/serving/jobs/items.py); .failed if it is a problem
    attempts/0001         one byte for each attempt that may have ended a process
    lease-000001          worker that holds the job (platform/fusionray/storage/lease.py)
    reserve/ended.json    spaces: room to write the outcome on a full disk
    outcome/ended.json    how the job ended, with result.zip if it is done; the first outcome stays

A repeated step is harmless: a result replaces an equal one, and only one of two outcomes can be renamed into place.
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
from fusionray.storage.atomic_files import (
    FILE_MODE,
    TMP_NAME,
    create_file,
    make_private_folder,
    replace_private_file,
    sync_folder,
)

EndState = Literal["done", "failed", "cancelled"]

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
    """Owner, options and size of a job; they never change."""

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
    """Indices of the finished items; an item with both a picture and a problem counts as done."""

    done: frozenset[int]
    failed: frozenset[int]

    @property
    def finished(self) -> frozenset[int]:
        """Return the indices that need no more work."""
        return self.done | self.failed


class JobFolder:
    """Read and write the files of a job.

    Raises: FileNotFoundError from any method after the job is removed.
    """

    def __init__(self, path: Path, record: JobRecord) -> None:
        self.path = path
        self.record = record
        self.tmp = path.parents[1] / TMP_NAME

    @classmethod
    def read(cls, path: Path) -> JobFolder:
        """Open the folder of a job.

        Raises: FileNotFoundError.
        """
        return cls(path, JobRecord(**json.loads((path / RECORD_NAME).read_bytes())))

    @property
    def ended(self) -> JobOutcome | None:
        """Return how the job ended; None while it is open."""
        try:
            return JobOutcome(**json.loads((self.path / OUTCOME_NAME / ENDED_NAME).read_bytes()))
        except FileNotFoundError:
            return None

    @property
    def is_open(self) -> bool:
        """Tell whether the job exists and has not ended."""
        return self.ended is None and (self.path / RECORD_NAME).exists()

    def read_source(self) -> bytes | str:
        """Read the source picture, or the handle of an identity."""
        try:
            return (self.path / IDENTITY_NAME).read_text()
        except FileNotFoundError:
            return (self.path / SOURCE_NAME).read_bytes()

    def read_item(self, index: int, source: bytes | str) -> JobItem:
        """Read what the work on an item needs."""
        target = (self.path / "targets" / f"{index:04d}").read_bytes()
        picture, identity = (None, source) if isinstance(source, str) else (source, None)
        return JobItem(self.record.job, self.record.owner, index, self.record.options, target, picture, identity)

    def progress(self) -> Progress:
        """List the finished items."""
        found: dict[str, set[int]] = {"done": set(), "failed": set()}
        for name in os.listdir(self.path / "results"):
            index, _, kind = name.partition(".")
            if kind in found and index.isdigit():
                found[kind].add(int(index))
        return Progress(frozenset(found["done"]), frozenset(found["failed"] - found["done"]))

    def write_result(self, index: int, outcome: ItemOutcome) -> None:
        """Store the outcome of an item."""
        kind = "done" if outcome.problem is None else "failed"
        replace_private_file(self.path / "results" / f"{index:04d}.{kind}", outcome.pack())

    def read_results(self, progress: Progress) -> Iterator[tuple[int, ItemOutcome]]:
        """Read the outcomes of the items in their order, one in memory at a time."""
        for index in sorted(progress.finished):
            kind = "done" if index in progress.done else "failed"
            yield index, ItemOutcome.unpack((self.path / "results" / f"{index:04d}.{kind}").read_bytes())

    def record_attempt(self, index: int) -> int:
        """Record an attempt at an item; return the number of earlier attempts."""
        path = make_private_folder(self.path / "attempts") / f"{index:04d}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE), "ab") as file:
            before = os.fstat(file.fileno()).st_size
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        return before

    def clear_attempts(self, index: int) -> None:
        """Clear the attempts at an item that a shutdown interrupted."""
        (self.path / "attempts" / f"{index:04d}").unlink(missing_ok=True)

    def reserve(self) -> None:
        """Allocate the space in which `end` writes on a full disk."""
        create_file(make_private_folder(self.path / RESERVE_NAME) / ENDED_NAME, b" " * RESERVED_BYTES)

    def end(self, state: EndState, reason: str | None = None) -> bool:
        """End the job without a result; return whether this call ended it. Needs no free disk space."""
        draft = self.tmp / uuid.uuid4().hex
        try:
            progress = self.progress()
            # The reserve is renamed first, so that two processes that end the job never write into the same file.
            (self.path / RESERVE_NAME).rename(draft)
        except FileNotFoundError:
            if not self.is_open:
                return False
            # Another process renamed the reserve and died.
            progress = self.progress()
            make_private_folder(draft)
        counts = len(progress.done), len(progress.failed)
        ended = JobOutcome(state, *counts, time.time(), reason and reason[:LONGEST_REASON])
        with os.fdopen(os.open(draft / ENDED_NAME, os.O_WRONLY | os.O_CREAT, FILE_MODE), "wb") as file:
            file.write(json.dumps(asdict(ended)).encode().ljust(RESERVED_BYTES))
        return self.publish(draft)

    def finish(self) -> bool:
        """End the job with the archive of its results; return whether this call ended it."""
        draft = make_private_folder(self.tmp / uuid.uuid4().hex)
        try:
            progress = self.progress()
            write_archive(draft / ARCHIVE_NAME, self.read_results(progress))
            sync_file(draft / ARCHIVE_NAME)
            ended = JobOutcome("done", len(progress.done), len(progress.failed), time.time())
            replace_private_file(draft / ENDED_NAME, json.dumps(asdict(ended)).encode())
        except BaseException as error:
            shutil.rmtree(draft, ignore_errors=True)
            if isinstance(error, FileNotFoundError) and not self.is_open:
                return False
            raise
        return self.publish(draft)

    def publish(self, draft: Path) -> bool:
        """Make a draft the outcome, unless there is one; then remove the job's inputs and results."""
        try:
            # A rename never replaces a folder that holds files.
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
        """Remove the inputs and results of an ended job; the archive holds the results."""
        for name in ("targets", "results", "attempts", RESERVE_NAME):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (SOURCE_NAME, IDENTITY_NAME):
            (self.path / name).unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Make a file private and flush it to the disk."""
    with open(path, "rb") as file:
        os.fchmod(file.fileno(), FILE_MODE)
        os.fsync(file.fileno())
