"""The routes of the service, version 1: models, health and metrics; each served task adds its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from starlette.responses import PlainTextResponse

from fusionray import __version__
from fusionray.bundle.description import FACE_FUSION, STYLE_TRANSFER
from fusionray.serving.auth.key_admin import KeyAdmin
from fusionray.serving.http.answers import Status
from fusionray.serving.http.jobs.events import add_event_route
from fusionray.serving.http.jobs.films import add_film_routes
from fusionray.serving.http.jobs.items import add_item_routes
from fusionray.serving.http.jobs.routes import add_job_routes
from fusionray.serving.http.metrics_page import CONTENT_TYPE, collect_metrics
from fusionray.serving.http.openapi import complete_document, problems
from fusionray.serving.http.responses import add_problem_handlers, answer
from fusionray.serving.http.routes_keys import add_key_routes, add_usage_route
from fusionray.serving.http.static_page import page_routes
from fusionray.serving.model_cards import AnyModelList, ModelList

if TYPE_CHECKING:
    from fusionray.serving.pipeline.ingress import Ingress


def build_api(ingress: Ingress) -> FastAPI:
    """Build the routes.

    FastAPI's interactive pages are off, because they load scripts from other hosts. Redirects of paths with a final
    slash are off, because they would lead to whatever host the client names.
    """
    api = FastAPI(title="fusionray", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    api.state.default_format = ingress.config.default_format
    api.state.max_sources = ingress.config.limits.max_faces
    add_problem_handlers(api)
    for task in ingress.tasks.values():
        task.add_routes(api)
    if ingress.jobs is not None:
        add_job_routes(api, ingress.jobs)
        add_item_routes(api, ingress.jobs)
        add_event_route(api, ingress.jobs)
        add_film_routes(api, ingress.jobs)
    if set(ingress.tasks) & {FACE_FUSION, STYLE_TRANSFER}:
        # The web page has a tab for each of them.
        api.router.routes.extend(page_routes())
    add_facts(api, ingress)
    add_usage_route(api, ingress.requests)
    file = ingress.config.keys.file
    add_key_routes(api, KeyAdmin(Path(file) if file else None, ingress.requests))
    complete_document(api)
    return api


def add_facts(api: FastAPI, ingress: Ingress) -> None:
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
        problem = await ingress.find_model()
        return answer(problem) if problem else Status(status="ready")

    # Clients of face fusion alone find the schema that they know.
    listed = ModelList if set(ingress.tasks) == {FACE_FUSION} else AnyModelList

    @api.get(
        "/v1/models",
        summary="List the models",
        response_description="Each model, the default first.",
        response_model=listed,
    )
    async def models() -> ModelList | AnyModelList:
        return listed(ingress.list_models())  # type: ignore[arg-type]

    @api.get(
        "/metrics",
        summary="Give the series for Prometheus",
        response_description="The series of all nodes.",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        return Response(await collect_metrics(), media_type=CONTENT_TYPE)
