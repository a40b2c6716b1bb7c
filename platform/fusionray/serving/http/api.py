"""The routes of the service, version 1: one picture, models, health, metrics; the others are in their own modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, FastAPI, Request, Response, UploadFile
from starlette.responses import PlainTextResponse

from fusionray import __version__
from fusionray.serving.http.forms import Source, find_caller, read_model, read_options, read_source
from fusionray.serving.http.metrics_page import CONTENT_TYPE, collect_metrics
from fusionray.serving.http.openapi import OF_PICTURES, complete_document, problems
from fusionray.serving.http.responses import add_problem_handlers, answer, answer_picture, picture_responses
from fusionray.serving.http.routes_batches import add_many_routes
from fusionray.serving.http.routes_identities import add_identity_routes
from fusionray.serving.http.static_page import page_routes
from fusionray.serving.pipeline.service import FuseRequest
from fusionray.serving.schema import FuseOptions, ModelList, Problem

if TYPE_CHECKING:
    from fusionray.serving.pipeline.ingress import Ingress


def build_api(ingress: Ingress) -> FastAPI:
    """Build the routes.

    The interactive pages are off: they would load scripts from elsewhere. So are redirects from a path with a slash at
    its end: they would lead to whatever host a client names.
    """
    api = FastAPI(title="fusionray", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    api.state.default_format = ingress.config.default_format
    add_problem_handlers(api)
    add_picture_route(api, ingress)
    add_identity_routes(api, ingress)
    add_many_routes(api, ingress)
    add_facts(api, ingress)
    api.router.routes.extend(page_routes())
    complete_document(api)
    return api


def add_picture_route(api: FastAPI, ingress: Ingress) -> None:
    """Add the route that makes one picture."""

    @api.post("/v1/fuse", response_class=Response, responses=picture_responses() | problems(*OF_PICTURES))
    async def fuse(
        request: Request,
        source: Annotated[Source, Depends(read_source)],
        target: UploadFile,
        options: Annotated[FuseOptions, Depends(read_options)],
        model: Annotated[str | None, Depends(read_model)],
    ) -> Response:
        caller = find_caller(request)
        if refused := await ingress.service.admit(caller, 1):
            return answer(refused)
        reply = await ingress.service.fuse(FuseRequest(caller, source, await target.read(), options, model))
        return answer(reply) if isinstance(reply, Problem) else answer_picture(reply)


def add_facts(api: FastAPI, ingress: Ingress) -> None:
    """Add the routes that tell how the service is."""

    @api.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @api.get("/readyz", response_model=None, responses=problems(503))
    async def readyz() -> Response | dict[str, str]:
        problem = await ingress.find_model()
        return answer(problem) if problem else {"status": "ready"}

    @api.get("/v1/models")
    async def models() -> ModelList:
        return ModelList(ingress.list_models())

    @api.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(await collect_metrics(), media_type=CONTENT_TYPE)
