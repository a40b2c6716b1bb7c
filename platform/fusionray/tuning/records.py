"""The records of a search: JSON files in its folder, from which the same command continues and writes the report.

    records/<trial>.json                 settings, reports and status of a trial; written by the driver
    records/<trial>/attempt-0001.json    first and last image of one start of its training; written by the trial
    records/<trial>/log.txt              messages of its training: damaged files, restarts, how steps are computed
    records/<trial>/transfer-0001.json   checkpoint of another trial that it continues from, and its settings (PBT)

One process writes each file, atomically, so a reader sees a consistent state. Does not import Ray.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from fusionray.config import Section
from fusionray.storage import filesystem as storage

FOLDER = "records"
SPENT_NAME = "spent.json"
LOG_NAME = "log.txt"

Status = Literal["waiting", "running", "finished", "stopped", "failed"]
# A trial with this status is over; a failed trial is tried again by the next start of the search.
DONE_STATUSES: tuple[Status, ...] = ("finished", "stopped")


class TrialReport(Section):
    """An evaluation of a trial after `images` images."""

    images: int
    value: float = Field(description="value of the search's metric")
    run: str = Field(description="folder of the evaluated run")
    metrics: dict[str, float] = Field(default_factory=dict)


class Attempt(Section):
    """One start of a trial's training."""

    run: str
    first_images: int = Field(description="images of the checkpoint that it started from; 0: none")
    last_images: int = Field(description="images at the last report; workers report twice a second")
    ended: Literal["", "finished", "interrupted", "failed"] = Field("", description="empty: running, or killed")
    error: str = Field("", description="why it failed, if known")


class CheckpointTransfer(Section):
    """A checkpoint of another trial that a trial continues from, with its own settings."""

    run: str = Field(description="run that starts from the copy")
    source_trial: str = Field(description="trial that made the checkpoint")
    checkpoint: str
    images: int
    settings: dict[str, Any]


class TrialRecord(Section):
    """A trial, as the driver knows it."""

    name: str
    number: int
    settings: dict[str, Any]
    status: Status = "waiting"
    reports: tuple[TrialReport, ...] = ()
    tracking_run: str = Field("", description="MLflow run; known once the trial is finished")

    @property
    def last(self) -> TrialReport | None:
        """Return the newest report."""
        return self.reports[-1] if self.reports else None

    def with_report(self, report: TrialReport) -> TrialRecord:
        """Add a report; it replaces those at the same images or later, which a restarted training repeats."""
        kept = tuple(other for other in self.reports if other.images < report.images)
        return self.model_copy(update={"reports": (*kept, report)})

    def value_at(self, images: int) -> float | None:
        """Return the value of the newest report up to `images`."""
        seen = [report.value for report in self.reports if report.images <= images]
        return seen[-1] if seen else None


class SearchRecords:
    """The records of a search, in its folder."""

    def __init__(self, folder: str) -> None:
        self.folder = storage.join(folder, FOLDER)

    def trials(self) -> list[TrialRecord]:
        """Read all trials, in the order of their proposal."""
        names = [name for name in storage.list_folder(self.folder) if name.endswith(".json") and name != SPENT_NAME]
        found = [TrialRecord.model_validate_json(self.read(name)) for name in names]
        return sorted(found, key=lambda record: record.number)

    def write(self, record: TrialRecord) -> None:
        """Write a trial."""
        self.write_section(f"{record.name}.json", record)

    def attempts(self, trial: str) -> list[Attempt]:
        """Read the starts of a trial's training, in order."""
        return [Attempt.model_validate_json(self.read(name)) for name in self.parts(trial, "attempt")]

    def write_attempt(self, trial: str, number: int, attempt: Attempt) -> None:
        """Write a start of a trial's training; `number` counts from 1."""
        self.write_section(f"{trial}/attempt-{number:04d}.json", attempt)

    def last_error(self, trial: str) -> str:
        """Return the last error of a trial."""
        errors = [attempt.error for attempt in self.attempts(trial) if attempt.error]
        return errors[-1] if errors else "its process died, or it never started; see Ray's logs"

    def transfers(self, trial: str) -> list[CheckpointTransfer]:
        """Read the transfers of checkpoints from other trials to a trial, in order."""
        return [CheckpointTransfer.model_validate_json(self.read(name)) for name in self.parts(trial, "transfer")]

    def write_transfer(self, trial: str, number: int, transfer: CheckpointTransfer) -> None:
        """Write a transfer of a checkpoint to a trial; `number` counts from 1."""
        self.write_section(f"{trial}/transfer-{number:04d}.json", transfer)

    def log(self, trial: str, lines: Sequence[str]) -> None:
        """Append messages of a training to its log file; on the terminal they would scroll the table away."""
        storage.append(storage.join(self.folder, trial, LOG_NAME), "".join(f"{line}\n" for line in lines).encode())

    def spent_seconds(self) -> float:
        """Return how long the search has run, over all of its starts."""
        if not storage.exists(storage.join(self.folder, SPENT_NAME)):
            return 0.0
        return float(json.loads(self.read(SPENT_NAME))["seconds"])

    def write_spent(self, seconds: float) -> None:
        """Write how long the search has run."""
        storage.write_atomic(storage.join(self.folder, SPENT_NAME), json.dumps({"seconds": seconds}).encode())

    def parts(self, trial: str, kind: str) -> list[str]:
        names = storage.list_folder(storage.join(self.folder, trial))
        return [f"{trial}/{name}" for name in sorted(names) if name.startswith(kind) and name.endswith(".json")]

    def read(self, name: str) -> bytes:
        return storage.read_bytes(storage.join(self.folder, name))

    def write_section(self, name: str, section: Section) -> None:
        storage.write_atomic(storage.join(self.folder, name), section.model_dump_json(indent=1).encode())


def trained_images(attempts: Sequence[Attempt]) -> int:
    """Count the images that a trial trained on; repeated ones count each time."""
    return sum(attempt.last_images - attempt.first_images for attempt in attempts)


def repeated_images(attempts: Sequence[Attempt]) -> list[int]:
    """Count, for each restart of a run, the images that it trained on twice."""
    newest: dict[str, int] = {}
    repeated = []
    for attempt in attempts:
        if attempt.run in newest:
            repeated.append(max(0, newest[attempt.run] - attempt.first_images))
        newest[attempt.run] = max(newest.get(attempt.run, 0), attempt.last_images)
    return repeated
