"""The routes of the service, version 1: those of its tasks, of jobs and keys, models, health and metrics."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from starlette.formparsers import MultiPartParser
from starlette.responses import PlainTextResponse

from fusionray import __version__
from fusionray.bundle.description import FACE_FUSION, STYLE_TRANSFER
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.answers import Status
from fusionray.serving.http.jobs.events import add_event_route
from fusionray.serving.http.jobs.films import add_film_routes
from fusionray.serving.http.jobs.items import add_item_routes
from fusionray.serving.http.jobs.routes import add_job_routes
from fusionray.serving.http.key_admin import KeyAdmin
from fusionray.serving.http.metrics_page import CONTENT_TYPE, collect_metrics
from fusionray.serving.http.openapi import complete_document, problems
from fusionray.serving.http.responses import add_problem_handlers, answer
from fusionray.serving.http.routes.keys import add_key_routes, add_usage_route
from fusionray.serving.http.static_page import page_routes
from fusionray.serving.http.task_routes import add_task_routes
from fusionray.serving.model_cards import AnyModelList, ModelList
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.tasks.job_service import JobService
from fusionray.serving.tasks.served_models import ServedModels

# For the parser of forms: its files never leave the memory, which `limits.upload_bytes` has reserved for the body. Else
# it would write what is longer than a megabyte to the disk, in a thread for each piece: 18 ms for two pictures of
# 2.8 MB, which take 11 in memory. Jobs have a parser of their own (jobs/uploads.py).
NEVER_ON_DISK = 0


def build_api(config: ServeConfig, requests: RequestService, models: ServedModels, jobs: JobService | None) -> FastAPI:
    """Build the routes; `jobs` is there if a task has some.

    FastAPI's interactive pages are off, because they load scripts from other hosts. Redirects of paths with a final
    slash are off, because they would lead to whatever host the client names.
    """
    api = FastAPI(title="fusionray", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    MultiPartParser.spool_max_size = NEVER_ON_DISK
    api.state.default_format = config.default_format
    api.state.max_sources = config.limits.max_faces
    add_problem_handlers(api)
    for name, task in models.tasks.items():
        add_task_routes(api, name, task)
    if jobs is not None:
        add_job_routes(api, jobs)
        add_item_routes(api, jobs)
        add_event_route(api, jobs)
        add_film_routes(api, jobs)
    if set(models.tasks) & {FACE_FUSION, STYLE_TRANSFER}:
        # The web page has a tab for each of them.
        api.router.routes.extend(page_routes())
    add_facts(api, models)
    add_usage_route(api, requests)
    file = config.keys.file
    add_key_routes(api, KeyAdmin(Path(file) if file else None, requests))
    complete_document(api)
    return api


def add_facts(api: FastAPI, models: ServedModels) -> None:
    """Add the routes for health, models and metrics."""

    @api.get("/healthz", summary="Say that the process lives", response_description="It lives.")
    async def healthz() -> Status:
        return Status(status="ok")

    @api.get(
        "/readyz",
        summary="Say whether the default model answers",
        response_description="It is loaded and warm.",
        response_model=Status,
        responses=problems(503),
    )
    async def readyz() -> Response | Status:
        problem = await models.check_default()
        return answer(problem) if problem else Status(status="ready")

    # Clients of face fusion alone find the schema that they know.
    listed = ModelList if set(models.tasks) == {FACE_FUSION} else AnyModelList

    @api.get(
        "/v1/models",
        summary="List the models",
        response_description="Each model, the default first.",
        response_model=listed,
    )
    async def list_models() -> ModelList | AnyModelList:
        return listed(models.list_cards())  # type: ignore[arg-type]

    @api.get(
        "/metrics",
        summary="Give the series for Prometheus",
        response_description="The series of all nodes.",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        return Response(await collect_metrics(), media_type=CONTENT_TYPE)
