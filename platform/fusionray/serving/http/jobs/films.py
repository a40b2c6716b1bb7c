"""Jobs whose target is a film: how one is recognised and checked, and the routes of what is made of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse

from fusionray.errors import ImageRejected, JobNotFinished, UnknownJob, VideoRejected
from fusionray.serving.http.forms import JobId, build_refusal, find_caller
from fusionray.serving.http.jobs.forms import JobForm
from fusionray.serving.http.openapi import problems
from fusionray.serving.http.responses import NO_STORE, answer
from fusionray.serving.jobs.films import FIGURES_NAME, PREVIEW_NAME, REPORT_NAME
from fusionray.serving.problems import explain
from fusionray.serving.schema import Problem, unavailable
from fusionray.serving.tasks.job_service import JobService
from fusionray.serving.videos.checking import check_film, describe_film_fault
from fusionray.serving.videos.results import find_film_file
from fusionray.video.files.signature import SIGNATURE_BYTES, find_video_suffix

# A film counts against the limits of a key as one picture for so many frames.
FRAMES_PER_IMAGE = 25
LOCAL_SCHEME = "file://"
FILM_TYPES = {".mp4": "video/mp4", ".mov": "video/quicktime"}
FILM_CONTENT: dict[str, Any] = {kind: {} for kind in FILM_TYPES.values()}
FILES = {
    "preview": (PREVIEW_NAME, "image/png", "A frame of the newest part of the film that is made, signed"),
    "report": (REPORT_NAME, "text/html", "Frames before and after, faces over time, seconds of each stage"),
    "figures": (FIGURES_NAME, "application/json", "What was counted and timed"),
}
NO_STORAGE = unavailable("storage_unavailable", "the storage of the URI does not answer")
# A browser that opens a report must run nothing in the name of the service.
FILE_HEADERS = {
    **NO_STORE,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class FilmTarget:
    """The film of a request: a local path, or the URI of a file below an allowed folder; its length in bytes.

    `role`: what the task of the job calls it.
    """

    location: str
    folder: str | None
    num_bytes: int
    role: str = "target"

    @property
    def is_local(self) -> bool:
        """Tell whether the film can be looked at before it is copied."""
        return self.folder is None or self.location.startswith(LOCAL_SCHEME)


async def find_film(form: JobForm, jobs: JobService) -> FilmTarget | Problem | None:
    """Find out whether the target of a request is a film, by its first bytes; None: the targets are pictures.

    Raises: RequestValidationError if the form does not suit a film.
    """
    films = [upload for upload in form.targets if upload.is_film]
    found: FilmTarget | Problem | None = None
    if films:
        found = FilmTarget(str(films[0].path), None, films[0].size or 0)
    uris = form.inputs.target_uris
    if not form.targets and len(uris) == 1:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, find_film_at, uris[0], jobs)
    if found is None:
        for name, value in form.film_options.items():
            if value:
                raise build_refusal(name, f"the {form.role} is no film")
        return None
    if isinstance(found, Problem):
        return found
    check_film_form(form)
    limit = jobs.config.limits.max_video_bytes
    if found.num_bytes > limit:
        detail = f"{form.role} film: it has {found.num_bytes} bytes; {limit} are the limit: send it in parts"
        return Problem(413, "too_large", "Film too large", detail, picture=form.role)
    return replace(found, role=form.role)


def find_film_at(uri: str, jobs: JobService) -> FilmTarget | Problem | None:
    """Tell whether a film is at a URI. What is not there is left to the work, as with pictures."""
    try:
        start, num_bytes = jobs.uris.read_start(uri, SIGNATURE_BYTES)
    except ImageRejected:
        return None
    except OSError:
        return NO_STORAGE
    if find_video_suffix(start) is None:
        return None
    return FilmTarget(uri, jobs.uris.find_prefix(uri), num_bytes)


def check_film_form(form: JobForm) -> None:
    """Refuse what only pictures can have.

    Raises: RequestValidationError.
    """
    if form.total > 1:
        raise build_refusal(form.role, f"{form.total} were sent; a job has one film, or pictures")
    for field, reason in form.film_refusals:
        raise build_refusal(field, reason)


async def count_images(film: FilmTarget, jobs: JobService) -> int | Problem:
    """Check a film, and return as how many pictures it counts.

    One that cannot be looked at before it is copied, in an object store, counts as one, and is checked by the work.
    """
    if not film.is_local:
        return 1
    loop = asyncio.get_running_loop()
    try:
        frames = await loop.run_in_executor(
            jobs.film_checks, check_film, film.location, film.folder, jobs.config.limits
        )
    except VideoRejected as error:
        return describe_film_fault(error, film.role)
    except OSError:
        return NO_STORAGE
    return max(1, round(frames / FRAMES_PER_IMAGE))


def answer_film(path: Path, job: str) -> Response:
    """Send a film; a client may ask for a part of it."""
    return FileResponse(path, headers=NO_STORE, media_type=FILM_TYPES[path.suffix], filename=f"{job}{path.suffix}")


def add_film_routes(api: FastAPI, jobs: JobService) -> None:
    """Add the routes of the preview, the report and the figures of a film."""
    for path in FILES:
        add_file_route(api, jobs, path)


def add_file_route(api: FastAPI, jobs: JobService, path: str) -> None:
    """Add the route of a file that is made beside a film, under its path in `FILES`."""
    name, media_type, what = FILES[path]
    described: dict[int | str, dict[str, Any]] = {200: {"content": {media_type: {}}, "description": what}}

    async def fetch(request: Request, job: JobId) -> Response:
        loop = asyncio.get_running_loop()
        try:
            owner = find_caller(request).name
            file = await loop.run_in_executor(None, find_film_file, jobs.store, job, owner, name)
        except (UnknownJob, JobNotFinished) as error:
            return answer(explain(error))
        return FileResponse(file, headers=FILE_HEADERS, media_type=media_type)

    api.router.add_api_route(
        f"/v1/jobs/{{job}}/{path}",
        fetch,
        methods=["GET"],
        summary=f"Fetch the {path} of a film",
        response_class=Response,
        responses=described | problems(404, 409),
        operation_id=f"fetch_{path}_of_film",
    )
