"""The routes of the service, version 1."""

from __future__ import annotations

import logging
from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Form, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from fusionray import __version__
from fusionray.runtime.face_reader import Faces
from fusionray.safety.provenance import PictureFormat
from serve.metrics_page import CONTENT_TYPE, collect_metrics
from serve.schema import PROBLEM_TYPE, FuseOptions, FuseReply, Problem
from serve.settings import NAME_PATTERN

if TYPE_CHECKING:
    from serve.ingress import Ingress

logger = logging.getLogger("ray.serve")


def answer(problem: Problem) -> Response:
    """Turn a problem into a response."""
    return Response(problem.body(), problem.status, problem.headers, PROBLEM_TYPE)


def read_options(
    request: Request,
    *,
    faces_in_form: Annotated[Faces | None, Form(alias="faces")] = None,
    faces_in_query: Annotated[Faces | None, Query(alias="faces")] = None,
    format_in_form: Annotated[PictureFormat | None, Form(alias="format")] = None,
    format_in_query: Annotated[PictureFormat | None, Query(alias="format")] = None,
    mark: Annotated[bool, Form()] = False,
) -> FuseOptions:
    """Read the choices of a client from the form or the query; the form wins."""
    return FuseOptions(
        faces=faces_in_form or faces_in_query or "largest",
        picture_format=format_in_form or format_in_query or request.app.state.default_format,
        mark=mark,
    )


def describe_reply(reply: FuseReply) -> dict[str, str]:
    """Write what is told beside a picture: who made it, where faces were found, and what each stage took."""
    boxes = ";".join(",".join(str(round(value)) for value in box) for box in reply.boxes)
    timing = ", ".join(f"{stage};dur={milliseconds:.2f}" for stage, milliseconds in reply.timing.items())
    return {
        "X-FusionRay-Model": reply.model,
        "X-FusionRay-Bundle": reply.bundle,
        "X-FusionRay-Faces": str(len(reply.boxes)),
        "X-FusionRay-Boxes": boxes,
        "X-FusionRay-Provenance": "c2pa; test-key" if reply.test_key else "c2pa",
        "Server-Timing": timing,
    }


def build_api(service: Ingress) -> FastAPI:
    """Build the routes. The interactive pages are off: they would load scripts from elsewhere."""
    api = FastAPI(title="fusionray", version=__version__, docs_url=None, redoc_url=None)
    api.state.default_format = service.config.default_format
    add_problem_handlers(api)
    pictures = {
        "content": {f"image/{kind}": {} for kind in ("png", "jpeg", "webp")},
        "description": "The fused picture",
    }

    @api.post("/v1/fuse", response_class=Response, responses={200: pictures})
    async def fuse(
        source: UploadFile,
        target: UploadFile,
        options: Annotated[FuseOptions, Depends(read_options)],
        model: Annotated[str | None, Form(pattern=NAME_PATTERN)] = None,
    ) -> Response:
        reply = await service.fuse(await source.read(), await target.read(), options, model)
        if isinstance(reply, Problem):
            return answer(reply)
        return Response(reply.data, 200, describe_reply(reply), reply.media_type)

    @api.get("/healthz")
    async def healthz() -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    @api.get("/readyz")
    async def readyz() -> Response:
        problem = await service.find_model()
        return answer(problem) if problem else Response(b'{"status":"ready"}', media_type="application/json")

    @api.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"models": [asdict(card) for card in service.list_models()]}

    @api.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(await collect_metrics(), media_type=CONTENT_TYPE)

    return api


def add_problem_handlers(api: FastAPI) -> None:
    """Make every error a problem document."""

    @api.exception_handler(RequestValidationError)
    async def refuse_fields(_: Request, error: RequestValidationError) -> Response:
        faults = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
        return answer(Problem(422, "bad_fields", "Field missing or not understood", faults))

    @api.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        reason = {413: "too_large", 408: "too_slow"}.get(error.status_code, status.name.lower())
        headers = dict(error.headers or {})
        return answer(Problem(error.status_code, reason, status.phrase, str(error.detail), headers=headers))

    @api.exception_handler(Exception)
    async def report_fault(_: Request, error: Exception) -> Response:
        logger.error("request failed", exc_info=error)
        return answer(Problem(500, "internal", "Internal error", "the request failed; the log of the service says why"))
