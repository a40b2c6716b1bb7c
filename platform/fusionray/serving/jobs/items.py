"""One item of a job: its inputs, its outcome, and the archive of all outcomes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

RESULTS_NAME = "results.json"
# A fixed date makes archives of the same results equal.
ARCHIVE_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class JobItem:
    """One target of a job and the inputs of its work. `index` counts from 1; `source` or `identity` is set."""

    job: str
    owner: str
    index: int
    options: dict[str, Any]
    target: bytes
    source: bytes | None
    identity: str | None


@dataclass(frozen=True)
class ItemOutcome:
    """Outcome of an item: a picture with details for `results.json`, or a problem document."""

    picture: bytes = b""
    extension: str = "png"
    details: dict[str, Any] = field(default_factory=dict)
    problem: dict[str, Any] | None = None

    def pack(self) -> bytes:
        """Write the outcome: a line of JSON, then the picture."""
        head = {"extension": self.extension, "details": self.details, "problem": self.problem}
        return json.dumps(head).encode() + b"\n" + self.picture

    @classmethod
    def unpack(cls, data: bytes) -> ItemOutcome:
        """Read what `pack` wrote."""
        line, _, picture = data.partition(b"\n")
        return cls(picture=picture, **json.loads(line))


def write_archive(place: Path | IO[bytes], outcomes: Iterable[tuple[int, ItemOutcome]]) -> None:
    """Write `0001.jpg`, ... and `results.json` into a zip; the pictures, compressed already, are stored as they are."""
    entries: list[dict[str, Any]] = []
    with zipfile.ZipFile(place, "w") as archive:
        for index, outcome in outcomes:
            if outcome.problem is not None:
                entries.append({"index": index, "status": "failed", "problem": outcome.problem})
                continue
            name = f"{index:04d}.{outcome.extension}"
            archive.writestr(zipfile.ZipInfo(name, ARCHIVE_DATE), outcome.picture)
            entries.append({"index": index, "status": "done", "file": name, **outcome.details})
        archive.writestr(zipfile.ZipInfo(RESULTS_NAME, ARCHIVE_DATE), json.dumps(entries, indent=1))
