"""Routes that list, look at, cancel and remove jobs, of whatever task."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse

from fusionray.errors import JobEnded, JobNotFinished, UnknownJob
from fusionray.serving.http.forms import JobId, find_caller
from fusionray.serving.http.jobs.cursors import read_cursor, write_cursor
from fusionray.serving.http.jobs.films import FILM_CONTENT, FILM_TYPES, answer_film
from fusionray.serving.http.openapi import problems
from fusionray.serving.http.responses import NO_STORE, answer
from fusionray.serving.http.routes.batches import ARCHIVE, ZIP_RESPONSE
from fusionray.serving.jobs.documents import JobDocument, JobListDocument, describe_job
from fusionray.serving.jobs.reader import JobState, JobStatus
from fusionray.serving.problems import explain
from fusionray.serving.tasks.job_service import JobService

RESULT_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": ZIP_RESPONSE[200]["content"] | FILM_CONTENT,
        "description": f"{ZIP_RESPONSE[200]['description']}; of a film, the film, signed",
    }
}
Limit = Annotated[int, Query(ge=1, le=200, description="Largest number of entries of the page.")]
Cursor = Annotated[str | None, Query(max_length=200, description="The `next` of the page before.")]


def add_job_routes(api: FastAPI, jobs: JobService) -> None:
    """Add the routes under /v1/jobs that are about whole jobs."""
    add_look_routes(api, jobs)
    add_end_routes(api, jobs)


def add_look_routes(api: FastAPI, jobs: JobService) -> None:
    """Add the routes that look at jobs."""

    @api.get(
        "/v1/jobs",
        summary="List the own jobs",
        response_description="A page of them, the newest first.",
        response_model=JobListDocument,
        responses=problems(422),
    )
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
            return jobs.store.list_jobs(owner, limit + 1, before=before, state=status)

        found = await asyncio.get_running_loop().run_in_executor(None, list_page)
        page = found[:limit]
        following = write_cursor(page[-1].created_at, page[-1].job) if len(found) > limit else None
        return {"jobs": [describe_job(each) for each in page], "next": following}

    @api.get(
        "/v1/jobs/{job}",
        summary="Look at a job",
        response_description="Its state.",
        response_model=JobDocument,
        responses=problems(404),
    )
    async def look(request: Request, job: JobId) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return describe_job(await loop.run_in_executor(None, jobs.store.status, job, find_caller(request).name))
        except UnknownJob as error:
            return answer(explain(error))

    @api.get(
        "/v1/jobs/{job}/result",
        summary="Fetch the result of a job",
        response_class=Response,
        responses=RESULT_RESPONSE | problems(404, 409),
    )
    async def fetch(request: Request, job: JobId) -> Response:
        loop = asyncio.get_running_loop()
        try:
            path = await loop.run_in_executor(None, jobs.store.result, job, find_caller(request).name)
        except (UnknownJob, JobNotFinished) as error:
            return answer(explain(error))
        if path.suffix in FILM_TYPES:
            return answer_film(path, job)
        return FileResponse(path, headers=NO_STORE, media_type=ARCHIVE, filename=f"{job}.zip")


def add_end_routes(api: FastAPI, jobs: JobService) -> None:
    """Add the routes that end jobs."""

    @api.post(
        "/v1/jobs/{job}/cancel",
        summary="Cancel a job",
        response_description="Its state.",
        response_model=JobDocument,
        responses=problems(404, 409),
    )
    async def cancel(request: Request, job: JobId) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return describe_job(await loop.run_in_executor(None, jobs.store.cancel, job, find_caller(request).name))
        except (UnknownJob, JobEnded) as error:
            return answer(explain(error))

    @api.delete(
        "/v1/jobs/{job}",
        summary="Remove a job and its pictures",
        response_description="It is removed.",
        status_code=204,
        responses=problems(404),
    )
    async def remove(request: Request, job: JobId) -> Response:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, jobs.store.remove, job, find_caller(request).name)
        except UnknownJob as error:
            return answer(explain(error))
        return Response(status_code=204)
