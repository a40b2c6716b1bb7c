"""The files of a job whose target is a film, in a folder of their own inside the job's.

    target              the film of the client; one that is named by a URI is copied here first
    order               token of the order by which the film is made (platform/fusionray/serving/videos/order.py)
    withdrawn-TOKEN     tells the task of an order that it must leave
    attempts            one byte for each attempt since something was finished
    progress.json       how far the work is
    fused.mp4           the film that was made, signed; `.fused.mp4.work` beside it holds what is made of its segments
    preview.png         a frame of the newest segment that is made
    report.html, figures.json
    made.json           what was made: written last

The folder has a random name, which the record of the job holds. A job that is created anew under the ID of one that was
removed, as an idempotency key allows, thus never has the files of a task that has not noticed the removal.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fusionray.storage.atomic_files import append_mark, replace_private_file

FilmStage = Literal["waiting", "reading", "finding", "fusing", "measuring", "painting", "joining", "made"]

TARGET_NAME = "target"
PROGRESS_NAME = "progress.json"
PREVIEW_NAME = "preview.png"
REPORT_NAME, FIGURES_NAME = "report.html", "figures.json"
MADE_NAME = "made.json"
ATTEMPTS_NAME = "attempts"


@dataclass(frozen=True)
class FilmProgress:
    """How far the work on a film is. Its faces are found in all frames first, then fused in all frames; or its frames
    are measured, then painted.

    `done` of `total` frames in this stage; `frames_per_second` and `seconds_left` are of this stage.
    None: unknown.
    """

    stage: FilmStage = "waiting"
    done: int = 0
    total: int | None = None
    frames_per_second: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class MadeFilm:
    """What was made: the file by its name in the folder, the task, title and hash of the model's bundle, counts, and
    the hexadecimal sha256 of the inputs by their names, of the result, and of the result before it was signed.

    `num_faces`: None if the task has nothing to do with faces.
    """

    file: str
    task: str
    model: str
    bundle: str
    num_faces: int | None
    num_frames: int
    inputs_sha256: dict[str, str]
    output_sha256: str
    unsigned_sha256: str

    @property
    def media_type(self) -> str:
        """Return the media type of the film."""
        return "video/quicktime" if self.file.endswith(".mov") else "video/mp4"

    @property
    def extension(self) -> str:
        """Return the extension of the film's name: mp4 or mov."""
        return self.file.rpartition(".")[2]


class FilmFolder:
    """Read and write the files of a film.

    Raises: FileNotFoundError from methods that write after the job is removed: no folder is ever made anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target = path / TARGET_NAME
        self.preview = path / PREVIEW_NAME

    def write_progress(self, progress: FilmProgress) -> None:
        """Store how far the work is."""
        replace_private_file(self.path / PROGRESS_NAME, json.dumps(asdict(progress)).encode())

    def read_progress(self) -> FilmProgress:
        """Read how far the work is; it waits if nothing was stored."""
        try:
            return FilmProgress(**json.loads((self.path / PROGRESS_NAME).read_bytes()))
        except FileNotFoundError:
            return FilmProgress()

    def write_made(self, made: MadeFilm) -> None:
        """Store what was made, when all other files are complete."""
        replace_private_file(self.path / MADE_NAME, json.dumps(asdict(made)).encode())

    def read_made(self) -> MadeFilm | None:
        """Read what was made; None while it is not complete."""
        try:
            return MadeFilm(**json.loads((self.path / MADE_NAME).read_bytes()))
        except FileNotFoundError:
            return None

    def find_result(self) -> Path:
        """Return the film that was made.

        Raises: FileNotFoundError if it is not complete.
        """
        made = self.read_made()
        if made is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        return self.path / made.file

    def record_attempt(self) -> int:
        """Record an attempt at the film; return the number of earlier attempts."""
        return append_mark(self.path / ATTEMPTS_NAME)

    def clear_attempts(self) -> None:
        """Forget the attempts: one has finished something, or was ended on purpose."""
        (self.path / ATTEMPTS_NAME).unlink(missing_ok=True)

    def remove_inputs(self) -> None:
        """Remove the film of the client."""
        self.target.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.path, ignore_errors=True)


def name_film_folder() -> str:
    """Choose the name of a film's folder."""
    return f"film-{secrets.token_hex(8)}"
