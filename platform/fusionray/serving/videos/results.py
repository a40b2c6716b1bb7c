"""What a client gets of a film beside the film itself."""

from __future__ import annotations

from pathlib import Path

from fusionray.errors import JobNotFinished
from fusionray.serving.jobs.store import JobStore


def find_film_file(store: JobStore, job: str, owner: str, name: str) -> Path:
    """Return a file of the film of a job, by its name in the film's folder: the preview, the report, its figures.

    Raises: UnknownJob; JobNotFinished if it is not there, or the job has pictures.
    """
    folder = store.find(job, owner)
    if folder.film is None:
        raise JobNotFinished("the job has no film: its targets are pictures")
    path = folder.film.path / name
    if not path.is_file():
        raise JobNotFinished(f"the job is {store.describe(folder).state}, and this is not there")
    return path
