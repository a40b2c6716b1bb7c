"""What a search remembers: JSON files in its folder, from which the same command goes on, and the report is made.

    records/<trial>.json                 settings, reports and fate of a trial; the driver writes it
    records/<trial>/attempt-0001.json    from where to where one start of its training came; the trial writes it
    records/<trial>/told.txt             what its training said: damage, restarts, how steps are computed
    records/<trial>/handover-0001.json   whose checkpoint it went on from, and with which settings (PBT)

Every file is written whole by one process, so a reader sees a state that was true. Knows no Ray.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fusionray.config import Section
from fusionray.storage import filesystem as storage

FOLDER = "records"
SPENT_NAME = "spent.json"
TOLD_NAME = "told.txt"

Status = Literal["waiting", "running", "finished", "stopped", "failed"]
# Those whose training is over; a failed trial is tried again by the next start of the search.
DONE: tuple[Status, ...] = ("finished", "stopped")


class Report(Section):
    """An evaluation after so many images."""

    images: int
    value: float = Field(description="the metric that is searched by")
    run: str = Field(description="run folder that it is of")
    metrics: dict[str, float] = Field(default_factory=dict)


class Attempt(Section):
    """One start of a trial's training."""

    run: str
    first_images: int = Field(description="images of the checkpoint that it began with; 0: none")
    last_images: int = Field(description="images it was last seen at; workers tell twice a second")
    ended: Literal["", "finished", "halted", "failed"] = Field("", description="empty: running, or killed")
    error: str = Field("", description="why it failed, if it is known")


class CheckpointTransfer(Section):
    """A checkpoint of another trial that a trial went on from, with settings of its own."""

    run: str = Field(description="run that begins with the copy")
    giver: str = Field(description="trial that made the checkpoint")
    checkpoint: str
    images: int
    settings: dict[str, Any]


class TrialRecord(Section):
    """A trial as the driver knows it."""

    name: str
    number: int
    settings: dict[str, Any]
    status: Status = "waiting"
    reports: tuple[Report, ...] = ()
    tracking_run: str = Field("", description="MLflow run; known once it is finished")

    @property
    def last(self) -> Report | None:
        """Give the newest report."""
        return self.reports[-1] if self.reports else None

    def told(self, report: Report) -> TrialRecord:
        """Add a report; one after as many images, made again after a restart, takes the place of the former."""
        kept = tuple(other for other in self.reports if other.images < report.images)
        return self.model_copy(update={"reports": (*kept, report)})

    def value_at(self, images: int) -> float | None:
        """Give the value of the newest report within so many images."""
        seen = [report.value for report in self.reports if report.images <= images]
        return seen[-1] if seen else None


class Records:
    """The records of a search, in its folder."""

    def __init__(self, folder: str) -> None:
        self.folder = storage.join(folder, FOLDER)

    def trials(self) -> list[TrialRecord]:
        """Read all trials, in the order in which they were proposed."""
        names = [name for name in storage.list_folder(self.folder) if name.endswith(".json") and name != SPENT_NAME]
        found = [TrialRecord.model_validate_json(self.read(name)) for name in names]
        return sorted(found, key=lambda record: record.number)

    def write(self, record: TrialRecord) -> None:
        """Write a trial."""
        self.put(f"{record.name}.json", record)

    def attempts(self, trial: str) -> list[Attempt]:
        """Read the starts of a trial, in order."""
        return [Attempt.model_validate_json(self.read(name)) for name in self.parts(trial, "attempt")]

    def write_attempt(self, trial: str, number: int, attempt: Attempt) -> None:
        """Write a start of a trial; `number` counts from 1."""
        self.put(f"{trial}/attempt-{number:04d}.json", attempt)

    def last_error(self, trial: str) -> str:
        """Say why a trial failed."""
        errors = [attempt.error for attempt in self.attempts(trial) if attempt.error]
        return errors[-1] if errors else "its process died, or it never started; see Ray's logs"

    def handovers(self, trial: str) -> list[CheckpointTransfer]:
        """Read what a trial took over from others, in order."""
        return [CheckpointTransfer.model_validate_json(self.read(name)) for name in self.parts(trial, "handover")]

    def write_handover(self, trial: str, number: int, handover: CheckpointTransfer) -> None:
        """Write that a trial took over a checkpoint; `number` counts from 1."""
        self.put(f"{trial}/handover-{number:04d}.json", handover)

    def tell(self, trial: str, lines: Sequence[str]) -> None:
        """Keep what a training had to say; on the terminal the lines of several would hide the table."""
        path = Path(self.folder) / trial / TOLD_NAME
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def spent_seconds(self) -> float:
        """Tell for how long the search has run, over all of its starts."""
        if not storage.exists(storage.join(self.folder, SPENT_NAME)):
            return 0.0
        return float(json.loads(self.read(SPENT_NAME))["seconds"])

    def write_spent(self, seconds: float) -> None:
        """Write for how long the search has run."""
        storage.write_atomic(storage.join(self.folder, SPENT_NAME), json.dumps({"seconds": seconds}).encode())

    def parts(self, trial: str, kind: str) -> list[str]:
        names = storage.list_folder(storage.join(self.folder, trial))
        return [f"{trial}/{name}" for name in sorted(names) if name.startswith(kind) and name.endswith(".json")]

    def read(self, name: str) -> bytes:
        return storage.read_bytes(storage.join(self.folder, name))

    def put(self, name: str, section: Section) -> None:
        storage.write_atomic(storage.join(self.folder, name), section.model_dump_json(indent=1).encode())


def trained_images(attempts: Sequence[Attempt]) -> int:
    """Count the images that a trial learned from, those of repeated stretches as often as they were."""
    return sum(attempt.last_images - attempt.first_images for attempt in attempts)


def repeated_images(attempts: Sequence[Attempt]) -> list[int]:
    """Count, for each restart of a run, the images that were learned from twice."""
    newest: dict[str, int] = {}
    repeated = []
    for attempt in attempts:
        if attempt.run in newest:
            repeated.append(max(0, newest[attempt.run] - attempt.first_images))
        newest[attempt.run] = max(newest.get(attempt.run, 0), attempt.last_images)
    return repeated
