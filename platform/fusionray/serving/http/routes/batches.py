"""The route for several targets of one source that are answered at once."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response

from fusionray.serving.http.forms import AS_FORM, AS_QUERY, BatchForm, FuseQuery, find_caller
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.responses import NO_STORE, answer
from fusionray.serving.jobs.items import ItemOutcome, write_archive
from fusionray.serving.pipeline.fusion_service import FuseRequest
from fusionray.serving.schema import Problem
from fusionray.serving.tasks.face_fusion import FaceFusion

ARCHIVE = "application/zip"
ZIP_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {ARCHIVE: {}}, "description": "0001.jpg, 0002.jpg, ... (named by format), results.json"}
}


def add_batch_route(api: FastAPI, task: FaceFusion) -> None:
    """Add the route of batches."""

    @api.post(
        "/v1/batches",
        summary="Fuse faces into several pictures",
        response_class=Response,
        responses=ZIP_RESPONSE | problems(*OF_PICTURES),
    )
    async def batch(
        request: Request, form: Annotated[BatchForm, AS_FORM], query: Annotated[FuseQuery, AS_QUERY]
    ) -> Response:
        caller, requests = find_caller(request), task.requests
        options, model = form.read_options(request, query), form.choose_model(query)
        sources, reference = await form.read_sources(request, options), await form.read_reference()
        if refused := check_number(len(form.target), task.config.limits.max_batch_targets, "batch"):
            return answer(refused)
        admitted = await requests.admit(caller, len(form.target))
        if isinstance(admitted, Problem):
            return answer(admitted)
        pictures = [await one.read() for one in form.target]
        outcomes = await asyncio.gather(
            *(
                task.make_outcome(FuseRequest(caller, sources, picture, options, model, reference))
                for picture in pictures
            )
        )
        requests.refund(admitted, sum(outcome.problem is not None for outcome in outcomes))
        # Copying many pictures would keep all other requests waiting.
        data = await asyncio.get_running_loop().run_in_executor(None, build_archive, outcomes)
        return Response(data, 200, NO_STORE, ARCHIVE)


def build_archive(outcomes: Sequence[ItemOutcome]) -> bytes:
    """Build the zip of a batch."""
    archive = io.BytesIO()
    write_archive(archive, enumerate(outcomes, 1))
    return archive.getvalue()


def check_number(num_targets: int, limit: int, what: str) -> Problem | None:
    """Refuse a request with too many targets."""
    if num_targets <= limit:
        return None
    detail = f"{num_targets} targets were sent; a {what} may have {limit}: send fewer"
    return Problem(413, "too_many_targets", "Too many targets", detail)
