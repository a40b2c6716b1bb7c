"""Routes for many targets of one source: a batch is answered at once, a job later."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, File, Request, Response, UploadFile
from fastapi.responses import FileResponse

from fusionray.errors import JobNotFinished, QuotaExceeded, StoreFull, UnknownJob
from fusionray.serving.http.forms import Source, find_caller, read_model, read_options, read_source
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.problems import explain
from fusionray.serving.http.responses import answer, write_time
from fusionray.serving.jobs.items import ItemOutcome, write_archive
from fusionray.serving.jobs.store import JobStatus
from fusionray.serving.pipeline.fusion_service import FuseRequest
from fusionray.serving.schema import FuseOptions, Problem

if TYPE_CHECKING:
    from fusionray.serving.tasks.face_fusion import FaceFusion

ARCHIVE = "application/zip"
ZIP_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {ARCHIVE: {}}, "description": "0001.jpg, 0002.jpg, ... (named by format), results.json"}
}
Targets = Annotated[list[UploadFile], File(description="The pictures to change, in order.")]


def add_many_routes(api: FastAPI, task: FaceFusion) -> None:
    """Add the routes under /v1/batches and /v1/jobs."""
    add_batch_route(api, task)
    add_job_routes(api, task)


def add_batch_route(api: FastAPI, task: FaceFusion) -> None:
    """Add the route of batches."""

    @api.post("/v1/batches", response_class=Response, responses=ZIP_RESPONSE | problems(*OF_PICTURES))
    async def batch(
        request: Request,
        source: Annotated[Source, Depends(read_source)],
        target: Targets,
        options: Annotated[FuseOptions, Depends(read_options)],
        model: Annotated[str | None, Depends(read_model)],
    ) -> Response:
        caller, requests = find_caller(request), task.requests
        if refused := check_selection(options):
            return answer(refused)
        if refused := check_number(len(target), task.config.limits.max_batch_targets, "batch"):
            return answer(refused)
        admitted = await requests.admit(caller, len(target))
        if isinstance(admitted, Problem):
            return answer(admitted)
        pictures = [await one.read() for one in target]
        outcomes = await asyncio.gather(
            *(task.make_outcome(FuseRequest(caller, source, picture, options, model)) for picture in pictures)
        )
        requests.refund(admitted, sum(outcome.problem is not None for outcome in outcomes))
        # Copying many pictures would keep all other requests waiting.
        data = await asyncio.get_running_loop().run_in_executor(None, build_archive, outcomes)
        return Response(data, 200, {"Cache-Control": "no-store"}, ARCHIVE)


def build_archive(outcomes: Sequence[ItemOutcome]) -> bytes:
    """Build the zip of a batch."""
    archive = io.BytesIO()
    write_archive(archive, enumerate(outcomes, 1))
    return archive.getvalue()


def add_job_routes(api: FastAPI, task: FaceFusion) -> None:
    """Add the routes of jobs."""

    # By default a form has 1,000 files at most. The source is one more, and a target too many is counted below.
    max_files = task.config.limits.max_job_targets + 2

    @api.post(
        "/v1/jobs",
        status_code=202,
        response_model=None,
        responses=problems(*OF_PICTURES, 507),
        form_limits={"max_files": max_files},
    )
    async def create(
        request: Request,
        response: Response,
        *,
        source: Annotated[Source, Depends(read_source)],
        target: Targets,
        options: Annotated[FuseOptions, Depends(read_options)],
        model: Annotated[str | None, Depends(read_model)],
    ) -> Response | dict[str, Any]:
        caller, requests = find_caller(request), task.requests
        if refused := check_selection(options):
            return answer(refused)
        if refused := check_number(len(target), task.config.limits.max_job_targets, "job"):
            return answer(refused)
        version = requests.choose(caller, model)
        if isinstance(version, Problem):
            return answer(version)
        admitted = await requests.admit(caller, len(target))
        if isinstance(admitted, Problem):
            return answer(admitted)
        pictures = [await one.read() for one in target]
        job_options = {"fuse": asdict(options), "model": version.name}
        loop = asyncio.get_running_loop()
        try:
            status = await loop.run_in_executor(None, task.jobs.create, caller.name, job_options, source, pictures)
        except (QuotaExceeded, StoreFull) as error:
            requests.refund(admitted, len(target))
            return answer(explain(error))
        task.job_worker.wake()
        response.headers["Location"] = f"/v1/jobs/{status.job}"
        return describe_job(status)

    @api.get("/v1/jobs/{job}", response_model=None, responses=problems(404))
    async def look(request: Request, job: str) -> Response | dict[str, Any]:
        loop = asyncio.get_running_loop()
        try:
            return describe_job(await loop.run_in_executor(None, task.jobs.status, job, find_caller(request).name))
        except UnknownJob as error:
            return answer(explain(error))

    @api.get("/v1/jobs/{job}/result", response_class=Response, responses=ZIP_RESPONSE | problems(404, 409))
    async def fetch(request: Request, job: str) -> Response:
        loop = asyncio.get_running_loop()
        try:
            path = await loop.run_in_executor(None, task.jobs.result, job, find_caller(request).name)
        except UnknownJob as error:
            return answer(explain(error))
        except JobNotFinished as error:
            return answer(Problem(409, "not_finished", "Not finished", str(error), headers={"Retry-After": "1"}))
        return FileResponse(path, headers={"Cache-Control": "no-store"}, media_type=ARCHIVE, filename=f"{job}.zip")

    @api.delete("/v1/jobs/{job}", status_code=204, responses=problems(404))
    async def remove(request: Request, job: str) -> Response:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, task.jobs.remove, job, find_caller(request).name)
        except UnknownJob as error:
            return answer(explain(error))
        return Response(status_code=204)


def check_selection(options: FuseOptions) -> Problem | None:
    """Refuse a selection that only single pictures have."""
    if options.faces != "reference":
        return None
    detail = "faces: only /v1/fuse takes reference; send largest, all, or numbers"
    return Problem(422, "bad_fields", "Field missing or not understood", detail)


def check_number(num_targets: int, limit: int, what: str) -> Problem | None:
    """Refuse a request with too many targets."""
    if num_targets <= limit:
        return None
    detail = f"{num_targets} targets were sent; a {what} may have {limit}: send fewer"
    return Problem(413, "too_many_targets", "Too many targets", detail)


def describe_job(status: JobStatus) -> dict[str, Any]:
    """Build the JSON of a job's state."""
    fields = asdict(status)
    fields["status"] = fields.pop("state")
    for name in ("created_at", "expires_at"):
        fields[name] = write_time(fields[name])
    return fields
