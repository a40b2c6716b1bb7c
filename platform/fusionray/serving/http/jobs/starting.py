"""Start a job: what the routes of all tasks share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request, Response

from fusionray.errors import KeyReused, Overloaded, QuotaExceeded, StoreFull
from fusionray.serving.auth.callers import Caller
from fusionray.serving.http.forms import find_caller
from fusionray.serving.http.jobs.films import FilmTarget, count_images, find_film
from fusionray.serving.http.jobs.forms import JobForm, build_job, check_uris, check_webhook
from fusionray.serving.http.jobs.uploads import UploadLimits, build_storing_route
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.responses import answer
from fusionray.serving.http.routes.batches import check_number
from fusionray.serving.http.routes.style import MAX_STYLES
from fusionray.serving.jobs.documents import JobDocument, describe_job
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.reader import JobStatus
from fusionray.serving.jobs.store import CreatedJob
from fusionray.serving.problems import explain
from fusionray.serving.schema import Problem
from fusionray.serving.tasks.job_service import JobService

IdempotencyKey = Annotated[
    str | None,
    Header(description="A string in quotation marks: a repeated request with it gets the job of the first one."),
]
# Files of a form that are shared by its targets, at most, and one more, which is counted and refused.
SHARED_FILES = MAX_STYLES + 1


def add_start_route(
    api: FastAPI, jobs: JobService, path: str, create: Callable[..., Any], *, film_field: str, summary: str
) -> None:
    """Add a route that starts jobs; its form may have a film in the field `film_field`."""
    limits = jobs.config.limits
    # A target too many is counted below.
    most_files = limits.max_job_targets + SHARED_FILES
    form_limits: Any = {"max_files": most_files, "max_fields": limits.max_job_targets + 20}
    upload_limits = UploadLimits(limits.max_body_bytes, limits.max_job_body_bytes, limits.max_video_bytes, film_field)
    api.router.add_api_route(
        path,
        create,
        methods=["POST"],
        status_code=202,
        summary=summary,
        response_description="The job, which waits for its turn.",
        response_model=JobDocument,
        responses=problems(*OF_PICTURES, 507),
        form_limits=form_limits,
        route_class_override=build_storing_route(jobs.store.tmp, upload_limits),
    )


async def answer_start(
    request: Request, response: Response, jobs: JobService, form: JobForm, model: str | None
) -> dict[str, Any] | Response:
    """Start the job of a request, and answer it."""
    started = await start_job(find_caller(request), jobs, form, model)
    if isinstance(started, Problem):
        return answer(started)
    response.headers["Location"] = f"/v1/jobs/{started.job}"
    return describe_job(started)


async def start_job(caller: Caller, jobs: JobService, form: JobForm, model: str | None) -> JobStatus | Problem:
    """Start the job of a request, or find the one that the same request has started."""
    loop = asyncio.get_running_loop()
    version = check_form(form, jobs) or jobs.requests.choose(caller, model, form.task)
    if isinstance(version, Problem):
        return version
    film = await find_film(form, jobs)
    if isinstance(film, Problem):
        return film
    film_bytes = None if film is None else film.num_bytes
    new = build_job(form, version.name, jobs.store.key, film_bytes)
    try:
        repeated = await loop.run_in_executor(None, jobs.store.find_repeated, caller.name, new)
        return repeated or await admit_job(caller, jobs, new, film)
    except (KeyReused, Overloaded, QuotaExceeded, StoreFull) as error:
        return explain(error)


async def admit_job(caller: Caller, jobs: JobService, new: NewJob, film: FilmTarget | None) -> JobStatus | Problem:
    """Count a job against the limits of the caller's key, and create it.

    Raises: KeyReused, Overloaded, QuotaExceeded, StoreFull.
    """
    num_images = new.total if film is None else await count_images(film, jobs)
    if isinstance(num_images, Problem):
        return num_images
    admitted = await jobs.requests.admit(caller, num_images)
    if isinstance(admitted, Problem):
        return admitted
    worker = jobs.worker if film is None else jobs.video_worker

    def settle(creating: asyncio.Future[CreatedJob]) -> None:
        if not creating.cancelled() and creating.exception() is None and creating.result().is_new:
            worker.wake()
        else:
            jobs.requests.refund(admitted, num_images)

    # A client that leaves ends the waiting, not the thread: the job is made, and its images count.
    creating = asyncio.get_running_loop().run_in_executor(None, jobs.store.create, caller.name, new)
    creating.add_done_callback(settle)
    return (await asyncio.shield(creating)).status


def check_form(form: JobForm, jobs: JobService) -> Problem | None:
    """Refuse a form with too many targets, or with places that the operator does not allow."""
    return (
        check_number(form.total, jobs.config.limits.max_job_targets, "job")
        or check_uris(form, jobs.uris)
        or check_webhook(form.webhook, jobs.config.jobs.webhooks.hosts)
    )
