"""The files of one job. Each change is one rename, so it happens completely or not at all, whichever process dies.

    job.json              owner and options; never changes
    secrets               handle, consent token and URIs, encrypted, until the job ends
    source, targets/0001  source and target pictures, until the job ends; likewise `reference`, if there is one, or
                          `styles/0001` instead of a source
    results/0001.done     outcome of one item (platform/fusionray/serving/jobs/items.py); .failed if it is a problem
    attempts/0001         one byte for each attempt that may have ended a process
    lease-000001          worker that holds the job (platform/fusionray/storage/lease.py)
    reserve/ended.json    spaces: room to write the outcome on a full disk
    outcome/ended.json    how the job ended, with result.zip if it is done; the first outcome stays
    webhook/              where to tell the end, and the attempts (platform/fusionray/serving/jobs/webhooks.py)
    film-.../             instead of `targets`, if the target is a film (platform/fusionray/serving/jobs/films.py)

A repeated step is harmless: a result replaces an equal one, and only one of two outcomes can be renamed into place. The
results of a job that is done are moved into its archive; those of one that ended otherwise stay where they are. A film
has no archive: what is made of it stays in its folder if the job is done, and is removed otherwise.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fusionray.serving.jobs.films import FilmFolder
from fusionray.serving.jobs.items import (
    ItemOutcome,
    JobInputs,
    JobItem,
    read_entries,
    read_head,
    read_picture,
    write_archive,
)
from fusionray.serving.jobs.record import EndState, JobOutcome, JobRecord, Progress
from fusionray.serving.jobs.service_key import ServiceKey
from fusionray.storage.atomic_files import (
    FILE_MODE,
    FOLDER_MODE,
    TMP_NAME,
    append_mark,
    create_file,
    make_private_folder,
    replace_private_file,
    sync_folder,
)

RECORD_NAME = "job.json"
SOURCE_NAME = "source"
REFERENCE_NAME = "reference"
STYLES_NAME = "styles"
# The pictures that all items share; `JobInputs` has fields of these names.
PICTURES = (SOURCE_NAME, REFERENCE_NAME, STYLES_NAME)
SECRETS_NAME = "secrets"
WEBHOOK_NAME = "webhook"
OUTCOME_NAME = "outcome"
RESERVE_NAME = "reserve"
ENDED_NAME = "ended.json"
ARCHIVE_NAME = "result.zip"
RESERVED_BYTES = 1024
LONGEST_REASON = 300
FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


class JobFolder:
    """Read and write the files of a job.

    Raises: FileNotFoundError from any method after the job is removed.
    """

    def __init__(self, path: Path, record: JobRecord) -> None:
        self.path = path
        self.record = record
        self.tmp = path.parents[1] / TMP_NAME
        self.film = FilmFolder(path / record.film) if record.film is not None else None

    @classmethod
    def read(cls, path: Path) -> JobFolder:
        """Open the folder of a job.

        Raises: FileNotFoundError.
        """
        return cls(path, JobRecord(**json.loads((path / RECORD_NAME).read_bytes())))

    @property
    def ended(self) -> JobOutcome | None:
        """Return how the job ended; None while it is open. A job whose outcome is damaged has failed."""
        file = self.path / OUTCOME_NAME / ENDED_NAME
        try:
            return JobOutcome(**json.loads(file.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            with suppress(FileNotFoundError):
                return JobOutcome("failed", 0, 0, file.stat().st_mtime, "its outcome is damaged; send the job again")
            return None

    @property
    def is_open(self) -> bool:
        """Tell whether the job exists and has not ended."""
        return self.ended is None and (self.path / RECORD_NAME).exists()

    @property
    def is_done(self) -> bool:
        """Tell whether the job has an archive of its results."""
        return self.archive.exists()

    def write_secrets(self, inputs: JobInputs, key: ServiceKey) -> None:
        """Store the inputs that are no pictures, encrypted."""
        fields = {name: value for name, value in asdict(inputs).items() if name not in PICTURES}
        content = json.dumps(fields).encode()
        create_file(self.path / SECRETS_NAME, key.cipher.encrypt(content, self.bind(SECRETS_NAME)))

    def read_inputs(self, key: ServiceKey) -> JobInputs:
        """Read what the items share.

        Raises: NotDecrypted.
        """
        encrypted = (self.path / SECRETS_NAME).read_bytes()
        fields = json.loads(key.cipher.decrypt(encrypted, self.bind(SECRETS_NAME)))
        fields["target_uris"] = tuple(fields["target_uris"])
        with suppress(FileNotFoundError):
            fields["styles"] = tuple(path.read_bytes() for path in sorted((self.path / STYLES_NAME).iterdir()))
        if fields["identity"] is None and fields["source_uri"] is None and "styles" not in fields:
            fields["source"] = (self.path / SOURCE_NAME).read_bytes()
        if fields["reference_similarity"] is not None:
            fields["reference"] = (self.path / REFERENCE_NAME).read_bytes()
        return JobInputs(**fields)

    def read_item(self, index: int, inputs: JobInputs) -> JobItem:
        """Read what the work on an item needs."""
        record = self.record
        num_pictures = record.total - len(inputs.target_uris)
        if index > num_pictures:
            uri = inputs.target_uris[index - num_pictures - 1]
            return JobItem(record.job, record.owner, index, record.options, inputs, target_uri=uri)
        target = (self.path / "targets" / f"{index:04d}").read_bytes()
        return JobItem(record.job, record.owner, index, record.options, inputs, target)

    def bind(self, name: str) -> bytes:
        """Name an encrypted file of this job, so that it is not taken for that of another one."""
        return f"{self.record.job}/{name}".encode()

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
        for index in progress.ordered:
            yield index, ItemOutcome.unpack(self.find_result(index, progress).read_bytes())

    def find_result(self, index: int, progress: Progress) -> Path:
        """Return the file with the outcome of a finished item."""
        return self.path / "results" / f"{index:04d}.{'done' if index in progress.done else 'failed'}"

    @property
    def archive(self) -> Path:
        """Return the place of the archive."""
        return self.path / OUTCOME_NAME / ARCHIVE_NAME

    def describe_items(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Describe the finished ones of some items, as `results.json` does, in their order."""
        if not self.is_done:
            with suppress(FileNotFoundError):
                progress, wanted = self.progress(), frozenset(indices)
                chosen = Progress(progress.done & wanted, progress.failed & wanted)
                entries = [read_head(self.find_result(index, chosen)).describe(index) for index in chosen.ordered]
                # If the job has ended meanwhile, some of its results may have been gone already.
                if not self.is_done:
                    return entries
        wanted = frozenset(indices)
        return [entry for entry in read_entries(self.archive) if entry["index"] in wanted]

    def read_outcome(self, index: int) -> ItemOutcome | None:
        """Read the outcome of an item, with its picture; None if it has none."""
        for kind in ("done", "failed"):
            with suppress(FileNotFoundError):
                return ItemOutcome.unpack((self.path / "results" / f"{index:04d}.{kind}").read_bytes())
        return read_picture(self.archive, index) if self.is_done else None

    def count_result_bytes(self) -> int:
        """Count the bytes of the archive or the film, or of the results if there is neither."""
        with suppress(FileNotFoundError):
            return (self.archive if self.film is None else self.film.find_result()).stat().st_size
        with suppress(FileNotFoundError):
            return sum(entry.stat().st_size for entry in os.scandir(self.path / "results"))
        return 0

    def record_attempt(self, index: int) -> int:
        """Record an attempt at an item; return the number of earlier attempts."""
        attempts = self.path / "attempts"
        # Without its parents: a job that was removed meanwhile must not come back.
        attempts.mkdir(FOLDER_MODE, exist_ok=True)
        return append_mark(attempts / f"{index:04d}")

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
            file.flush()
            os.fsync(file.fileno())
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
        """Make a draft the outcome, unless there is one; then remove what the job needs no more."""
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
        """Remove the inputs of an ended job, its results if the archive holds them, and an unfinished film."""
        if self.film is not None:
            ended = self.ended
            if ended is not None and ended.state == "done":
                self.film.remove_inputs()
            else:
                self.film.remove()
        results = ("results",) if self.is_done else ()
        for name in ("targets", STYLES_NAME, "attempts", RESERVE_NAME, *results):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (SOURCE_NAME, REFERENCE_NAME, SECRETS_NAME):
            (self.path / name).unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Make a file private and flush it to the disk."""
    with open(path, "rb") as file:
        os.fchmod(file.fileno(), FILE_MODE)
        os.fsync(file.fileno())
