"""HTTP responses for replies and problems, and their OpenAPI descriptions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from fusionray.serving.pipeline.request_service import PictureRequest
from fusionray.serving.problems import INTERNAL_ERROR
from fusionray.serving.schema import PROBLEM_TYPE, FuseReply, PictureReply, Problem
from fusionray.serving.tasks.pictures import PictureTask

logger = logging.getLogger("ray.serve")

# No cache keeps a picture, or what belongs to one caller.
NO_STORE = {"Cache-Control": "no-store"}
REASONS = {408: "too_slow", 413: "too_large", 507: "store_full"}


def answer(problem: Problem) -> Response:
    """Turn a problem into a response."""
    return Response(problem.body(), problem.status, problem.headers, PROBLEM_TYPE)


def answer_picture(reply: PictureReply) -> Response:
    """Turn a picture into a response."""
    return Response(reply.data, 200, describe_reply(reply), reply.media_type)


async def answer_request(task: PictureTask, request: PictureRequest) -> Response:
    """Make one picture, counted against the limits of the caller's key, and turn it into a response."""
    admitted = await task.requests.admit(request.caller, 1)
    if isinstance(admitted, Problem):
        return answer(admitted)
    reply = await task.make(request)
    if isinstance(reply, Problem):
        task.requests.refund(admitted, 1)
        return answer(reply)
    return answer_picture(reply)


def describe_reply(reply: PictureReply) -> dict[str, str]:
    """Build the headers of a picture: model, bundle, boxes of the faces if any, provenance, milliseconds by stage."""
    timing = ", ".join(f"{stage};dur={milliseconds:.2f}" for stage, milliseconds in reply.timing.items())
    faces = describe_faces(reply) if isinstance(reply, FuseReply) else {}
    return {
        "X-FusionRay-Model": reply.model,
        "X-FusionRay-Bundle": reply.bundle,
        **faces,
        "X-FusionRay-Provenance": "c2pa; test-key" if reply.test_key else "c2pa",
        "Server-Timing": timing,
        **NO_STORE,
    }


def describe_faces(reply: FuseReply) -> dict[str, str]:
    return {
        "X-FusionRay-Faces": str(len(reply.boxes)),
        "X-FusionRay-Boxes": ";".join(",".join(str(round(value)) for value in box) for box in reply.boxes),
    }


def add_problem_handlers(api: FastAPI) -> None:
    """Answer every error with a problem document."""

    @api.exception_handler(RequestValidationError)
    async def refuse_fields(_: Request, error: RequestValidationError) -> Response:
        faults = "; ".join(f"{name_field(fault['loc'])}: {fault['msg']}" for fault in error.errors())
        return answer(Problem(422, "bad_fields", "Field missing or not understood", faults))

    @api.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        reason = REASONS.get(error.status_code, status.name.lower())
        headers = dict(error.headers or {})
        return answer(Problem(error.status_code, reason, status.phrase, str(error.detail), headers=headers))

    @api.exception_handler(Exception)
    async def report_fault(_: Request, error: Exception) -> Response:
        logger.error("request failed", exc_info=error)
        return answer(INTERNAL_ERROR)


def name_field(place: Sequence[str | int]) -> str:
    """Name the field at a place of a request; the last part of the place may be a number in a list."""
    return next((str(part) for part in reversed(place) if isinstance(part, str)), "")


def picture_responses(what: str) -> dict[int | str, dict[str, Any]]:
    """Describe the response that holds a picture; `what` is its description."""
    kinds: dict[str, Any] = {f"image/{kind}": {} for kind in ("png", "jpeg", "webp")}
    return {200: {"content": kinds, "description": what}}
