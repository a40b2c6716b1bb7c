"""Routes that start, list, look at, cancel and remove jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.responses import FileResponse

from fusionray.errors import JobEnded, JobNotFinished, KeyReused, Overloaded, QuotaExceeded, StoreFull, UnknownJob
from fusionray.serving.auth.callers import Caller
from fusionray.serving.http.forms import AS_FORM, AS_QUERY, FuseQuery, find_caller
from fusionray.serving.http.jobs.documents import JobDocument, JobListDocument, describe_job, read_cursor, write_cursor
from fusionray.serving.http.jobs.films import (
    FILM_CONTENT,
    FILM_TYPES,
    NO_STORE,
    FilmTarget,
    answer_film,
    count_images,
    find_film,
)
from fusionray.serving.http.jobs.forms import (
    JobFields,
    JobForm,
    build_job,
    check_uris,
    check_webhook,
    read_form,
)
from fusionray.serving.http.jobs.uploads import UploadLimits, build_storing_route
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.problems import explain
from fusionray.serving.http.responses import answer
from fusionray.serving.http.routes_batches import ARCHIVE, ZIP_RESPONSE, check_number
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.store import JobState, JobStatus
from fusionray.serving.schema import FuseOptions, Problem

if TYPE_CHECKING:
    from fusionray.serving.tasks.face_fusion import FaceFusion

RESULT_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": ZIP_RESPONSE[200]["content"] | FILM_CONTENT,
        "description": f"{ZIP_RESPONSE[200]['description']}; of a film, the film, signed",
    }
}
Limit = Annotated[int, Query(ge=1, le=200, description="Largest number of entries of the page.")]
IdempotencyKey = Annotated[
    str | None,
    Header(description="A string in quotation marks: a repeated request with it gets the job of the first one."),
]
Cursor = Annotated[str | None, Query(max_length=200, description="The `next` of the page before.")]


def add_job_routes(api: FastAPI, task: FaceFusion) -> None:
    """Add the routes under /v1/jobs that are about whole jobs."""
    add_create_route(api, task)
    add_look_routes(api, task)
    add_end_routes(api, task)


def add_create_route(api: FastAPI, task: FaceFusion) -> None:
    """Add the route that starts a job."""
    limits = task.config.limits
    # Of files, source and reference are two more than the targets, and a target too many is counted below.
    form_limits: Any = {"max_files": limits.max_job_targets + 3, "max_fields": limits.max_job_targets + 20}

    async def create(
        request: Request,
        response: Response,
        *,
        fields: Annotated[JobFields, AS_FORM],
        query: Annotated[FuseQuery, AS_QUERY],
        idempotency_key: IdempotencyKey = None,
    ) -> Any:
        options = fields.read_options(request, query)
        form = await read_form(request, fields, idempotency_key)
        started = await start_job(find_caller(request), task, form, options, fields.choose_model(query))
        if isinstance(started, Problem):
            return answer(started)
        response.headers["Location"] = f"/v1/jobs/{started.job}"
        return describe_job(started)

    api.router.add_api_route(
        "/v1/jobs",
        create,
        methods=["POST"],
        status_code=202,
        response_model=JobDocument,
        responses=problems(*OF_PICTURES, 507),
        form_limits=form_limits,
        route_class_override=build_storing_route(
            task.jobs.tmp, UploadLimits(limits.max_body_bytes, limits.max_job_body_bytes, limits.max_video_bytes)
        ),
    )


async def start_job(
    caller: Caller, task: FaceFusion, form: JobForm, options: FuseOptions, model: str | None
) -> JobStatus | Problem:
    """Start the job of a request, or find the one that the same request has started."""
    loop, requests = asyncio.get_running_loop(), task.requests
    version = check_form(form, task) or requests.choose(caller, model)
    if isinstance(version, Problem):
        return version
    film = await find_film(form, options, task)
    if isinstance(film, Problem):
        return film
    film_bytes = None if film is None else film.num_bytes
    new = build_job(form, options, version.name, task.jobs.key, film_bytes)
    try:
        repeated = await loop.run_in_executor(None, task.jobs.find_repeated, caller.name, new)
        return repeated or await admit_job(caller, task, new, film)
    except (KeyReused, Overloaded, QuotaExceeded, StoreFull) as error:
        return explain(error)


async def admit_job(caller: Caller, task: FaceFusion, new: NewJob, film: FilmTarget | None) -> JobStatus | Problem:
    """Count a job against the limits of the caller's key, and create it.

    Raises: KeyReused, Overloaded, QuotaExceeded, StoreFull.
    """
    num_images = new.total if film is None else await count_images(film, task)
    if isinstance(num_images, Problem):
        return num_images
    admitted = await task.requests.admit(caller, num_images)
    if isinstance(admitted, Problem):
        return admitted
    is_new = False
    try:
        created = await asyncio.get_running_loop().run_in_executor(None, task.jobs.create, caller.name, new)
        is_new = created.is_new
    finally:
        if not is_new:
            task.requests.refund(admitted, num_images)
    (task.job_worker if film is None else task.video_worker).wake()
    return created.status


def check_form(form: JobForm, task: FaceFusion) -> Problem | None:
    """Refuse a form with too many targets, or with places that the operator does not allow."""
    return (
        check_number(form.total, task.config.limits.max_job_targets, "job")
        or check_uris(form, task.uris)
        or check_webhook(form.webhook, task.config.jobs.webhooks.hosts)
    )


def add_look_routes(api: FastAPI, task: FaceFusion) -> None:
    """Add the routes that look at jobs."""

    @api.get("/v1/jobs", response_model=JobListDocument, responses=problems(422))
    async def find(
        request: Request,
        limit: Limit = 50,
        cursor: Cursor = None,
        status: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    ) -> dict[str, Any]:
        before = read_cursor(cursor, (float, str))
        owner = find_caller(request).name

        def list_page() -> list[JobStatus]:
            # One more tells whether there is a next page.
            return task.jobs.list_jobs(owner, limit + 1, before=before, state=status)

        found = await asyncio.get_running_loop().run_in_executor(None, list_page)
        page = found[:limit]
        following = write_cursor(page[-1].created_at, page[-1].job) if len(found) > limit else None
        return {"jobs": [describe_job(each) for each in page], "next": following}

    @api.get("/v1/jobs/{job}", response_model=JobDocument, responses=problems(404))
    async def look(request: Request, job: str) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return describe_job(await loop.run_in_executor(None, task.jobs.status, job, find_caller(request).name))
        except UnknownJob as error:
            return answer(explain(error))

    @api.get("/v1/jobs/{job}/result", response_class=Response, responses=RESULT_RESPONSE | problems(404, 409))
    async def fetch(request: Request, job: str) -> Response:
        loop = asyncio.get_running_loop()
        try:
            path = await loop.run_in_executor(None, task.jobs.result, job, find_caller(request).name)
        except (UnknownJob, JobNotFinished) as error:
            return answer(explain(error))
        if path.suffix in FILM_TYPES:
            return answer_film(path, job)
        return FileResponse(path, headers=NO_STORE, media_type=ARCHIVE, filename=f"{job}.zip")


def add_end_routes(api: FastAPI, task: FaceFusion) -> None:
    """Add the routes that end jobs."""

    @api.post("/v1/jobs/{job}/cancel", response_model=JobDocument, responses=problems(404, 409))
    async def cancel(request: Request, job: str) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return describe_job(await loop.run_in_executor(None, task.jobs.cancel, job, find_caller(request).name))
        except (UnknownJob, JobEnded) as error:
            return answer(explain(error))

    @api.delete("/v1/jobs/{job}", status_code=204, responses=problems(404))
    async def remove(request: Request, job: str) -> Response:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, task.jobs.remove, job, find_caller(request).name)
        except UnknownJob as error:
            return answer(explain(error))
        return Response(status_code=204)
