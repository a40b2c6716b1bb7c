"""Routes of the single pictures of a job, which are there as soon as they are made."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request, Response

from fusionray.errors import JobNotFinished, UnknownItem, UnknownJob
from fusionray.serving.http.forms import JobId, find_caller
from fusionray.serving.http.jobs.cursors import read_cursor, write_cursor
from fusionray.serving.http.jobs.films import FILM_CONTENT, FILM_TYPES, answer_film
from fusionray.serving.http.jobs.routes import Cursor, Limit
from fusionray.serving.http.openapi import problems
from fusionray.serving.http.responses import NO_STORE, answer, picture_responses
from fusionray.serving.jobs.documents import ItemListDocument
from fusionray.serving.problems import explain
from fusionray.serving.schema import Problem
from fusionray.serving.tasks.job_service import JobService

MADE = picture_responses("The picture that was made, or the film, signed")
MADE[200]["content"] |= FILM_CONTENT


def add_item_routes(api: FastAPI, jobs: JobService) -> None:
    """Add the routes under /v1/jobs/ID/items."""

    @api.get(
        "/v1/jobs/{job}/items",
        summary="List the pictures of a job",
        response_description="A page of them, in their order.",
        response_model=ItemListDocument,
        response_model_exclude_unset=True,
        responses=problems(404, 422),
    )
    async def find(request: Request, job: JobId, limit: Limit = 50, cursor: Cursor = None) -> Any:
        position = read_cursor(cursor, (int,))
        first = max(1, position[0]) if position else 1
        loop = asyncio.get_running_loop()
        try:
            # One more tells whether there is a next page.
            found = await loop.run_in_executor(None, jobs.store.items, job, find_caller(request).name, first, limit + 1)
        except UnknownJob as error:
            return answer(explain(error))
        following = write_cursor(first + limit) if len(found) > limit else None
        return {"items": found[:limit], "next": following}

    @api.get(
        "/v1/jobs/{job}/items/{index}",
        summary="Fetch one picture of a job",
        response_class=Response,
        responses=MADE | problems(404, 409, 422),
    )
    async def fetch(
        request: Request, job: JobId, index: Annotated[int, Path(description="Number of the picture, from 1 on.")]
    ) -> Response:
        loop = asyncio.get_running_loop()
        try:
            owner = find_caller(request).name
            outcome = await loop.run_in_executor(None, jobs.store.item, job, owner, index)
            if outcome.problem is None and f".{outcome.extension}" in FILM_TYPES:
                return answer_film(await loop.run_in_executor(None, jobs.store.result, job, owner), job)
        except (UnknownJob, UnknownItem, JobNotFinished) as error:
            return answer(explain(error))
        if outcome.problem is not None:
            return answer(Problem(409, "item_failed", "Picture not made", str(outcome.problem.get("detail", ""))))
        media_type = f"image/{outcome.extension.replace('jpg', 'jpeg')}"
        return Response(outcome.picture, 200, NO_STORE, media_type)
