"""What a client sends to start a job, and the files that are made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fusionray.serving.jobs.folder import RECORD_NAME, REFERENCE_NAME, SOURCE_NAME, STYLES_NAME, JobFolder, sync_file
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.jobs.service_key import ServiceKey
from fusionray.serving.jobs.webhooks import write_address
from fusionray.storage.atomic_files import create_file, make_private_folder

# A picture that is read by URI counts as so large, because its size is not known when the job is created.
URI_BYTES = 2**20
# A job counts as twice the size of its pictures: as much for the results. The result of a film is there three times for
# a moment: as segments, joined, and signed.
FILM_FACTOR = 2


@dataclass(frozen=True)
class NewJob:
    """What a client sends. Pictures are bytes, or files that the store moves; `host` is that of the `webhook` (a URL).

    A request with an `idempotency_key` has a `fingerprint`, which is the same only for the same request. `film_bytes`:
    the length of the target if it is a film; None if the targets are pictures.
    """

    options: dict[str, Any]
    source: bytes | Path | None
    targets: Sequence[bytes | Path]
    inputs: JobInputs = field(default_factory=JobInputs)
    webhook: str | None = None
    host: str | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None
    reference: bytes | Path | None = None
    film_bytes: int | None = None
    styles: Sequence[bytes | Path] = ()

    @property
    def total(self) -> int:
        """Return the number of items."""
        return len(self.targets) + len(self.inputs.target_uris)

    @property
    def num_bytes(self) -> int:
        """Return the size of the pictures, or what a film counts as."""
        if self.film_bytes is not None:
            return FILM_FACTOR * self.film_bytes
        shared = (self.source, self.reference, *self.styles)
        pictures = [*self.targets, *(picture for picture in shared if picture is not None)]
        sizes = (picture.stat().st_size if isinstance(picture, Path) else len(picture) for picture in pictures)
        return sum(sizes) + URI_BYTES * len(self.inputs.target_uris)


def write_job(folder: JobFolder, new: NewJob, key: ServiceKey) -> None:
    """Write the initial files of a job.

    Raises: OSError.
    """
    make_private_folder(folder.path)
    make_private_folder(folder.path / "results")
    if folder.film is None:
        make_private_folder(folder.path / "targets")
        places = [folder.path / "targets" / f"{index:04d}" for index in range(1, len(new.targets) + 1)]
    else:
        make_private_folder(folder.film.path)
        places = [folder.film.target][: len(new.targets)]
    for target, place in zip(new.targets, places, strict=True):
        place_picture(target, place)
    for name, picture in ((SOURCE_NAME, new.source), (REFERENCE_NAME, new.reference)):
        if picture is not None:
            place_picture(picture, folder.path / name)
    if new.styles:
        styles = make_private_folder(folder.path / STYLES_NAME)
        for number, style in enumerate(new.styles, 1):
            place_picture(style, styles / f"{number:04d}")
    folder.write_secrets(new.inputs, key)
    if new.webhook is not None:
        write_address(folder, new.webhook, key)
    create_file(folder.path / RECORD_NAME, json.dumps(asdict(folder.record)).encode())
    folder.reserve()


def place_picture(picture: bytes | Path, place: Path) -> None:
    """Write a picture, or move its file."""
    if isinstance(picture, bytes):
        create_file(place, picture)
        return
    picture.rename(place)
    sync_file(place)
