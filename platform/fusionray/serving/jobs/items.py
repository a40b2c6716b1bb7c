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
class JobInputs:
    """What the items of a job share: the source (a picture, the handle of an identity, or a URI) or the styles, the
    client's consent token, the URIs of the last targets (those before are pictures), and the reference with its least
    similarity, -1 to 1, if the faces are chosen by one.
    """

    source: bytes | None = None
    identity: str | None = None
    source_uri: str | None = None
    consent: str | None = None
    target_uris: tuple[str, ...] = ()
    reference: bytes | None = None
    reference_similarity: float | None = None
    styles: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class JobItem:
    """One target of a job and the inputs of its work. `index` counts from 1; the target is a picture or a URI."""

    job: str
    owner: str
    index: int
    options: dict[str, Any]
    inputs: JobInputs
    target: bytes | None = None
    target_uri: str | None = None


@dataclass(frozen=True)
class ItemOutcome:
    """Outcome of an item: a picture with details for `results.json`, or a problem document."""

    picture: bytes = b""
    extension: str = "png"
    details: dict[str, Any] = field(default_factory=dict)
    problem: dict[str, Any] | None = None

    @classmethod
    def of(cls, data: bytes, media_type: str, **details: Any) -> ItemOutcome:
        """Build the outcome of a picture that was made."""
        return cls(data, media_type.removeprefix("image/").replace("jpeg", "jpg"), details)

    def pack(self) -> bytes:
        """Write the outcome: a line of JSON, then the picture."""
        head = {"extension": self.extension, "details": self.details, "problem": self.problem}
        return json.dumps(head).encode() + b"\n" + self.picture

    @classmethod
    def unpack(cls, data: bytes) -> ItemOutcome:
        """Read what `pack` wrote."""
        line, _, picture = data.partition(b"\n")
        return cls(picture=picture, **json.loads(line))

    def describe(self, index: int) -> dict[str, Any]:
        """Describe the outcome of the item of a number, as `results.json` does."""
        if self.problem is not None:
            return {"index": index, "status": "failed", "problem": self.problem}
        return {"index": index, "status": "done", "file": f"{index:04d}.{self.extension}", **self.details}


def read_head(path: Path) -> ItemOutcome:
    """Read the outcome in a file, without its picture."""
    with path.open("rb") as file:
        return ItemOutcome.unpack(file.readline())


def write_archive(place: Path | IO[bytes], outcomes: Iterable[tuple[int, ItemOutcome]]) -> None:
    """Write `0001.jpg`, ... and `results.json` into a zip; the pictures, compressed already, are stored as they are."""
    entries: list[dict[str, Any]] = []
    with zipfile.ZipFile(place, "w") as archive:
        for index, outcome in outcomes:
            entries.append(outcome.describe(index))
            if outcome.problem is None:
                archive.writestr(zipfile.ZipInfo(entries[-1]["file"], ARCHIVE_DATE), outcome.picture)
        archive.writestr(zipfile.ZipInfo(RESULTS_NAME, ARCHIVE_DATE), json.dumps(entries, indent=1))


def read_entries(archive: Path) -> list[dict[str, Any]]:
    """Read the descriptions of all items from an archive, in their order.

    Raises: FileNotFoundError.
    """
    with zipfile.ZipFile(archive) as opened:
        entries: list[dict[str, Any]] = json.loads(opened.read(RESULTS_NAME))
    return entries


def read_picture(archive: Path, index: int) -> ItemOutcome | None:
    """Read the outcome of one item from an archive, with its picture; None if the archive has no such item.

    Raises: FileNotFoundError.
    """
    with zipfile.ZipFile(archive) as opened:
        for entry in json.loads(opened.read(RESULTS_NAME)):
            if entry["index"] == index and entry["status"] == "done":
                extension = entry["file"].rpartition(".")[2]
                return ItemOutcome(opened.read(entry["file"]), extension)
            if entry["index"] == index:
                return ItemOutcome(problem=entry["problem"])
    return None
