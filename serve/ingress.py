"""The HTTP face of the service: two pictures in, one out; health; what is loaded."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Form, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException

from fusionray import __version__
from fusionray.safety.provenance import PictureFormat
from serve.guards import BodyGuard, KeyGuard, check_exposure
from serve.schema import PROBLEM_TYPE, Faces, FuseOptions, FuseReply, ModelCard, Problem, ServeConfig

logger = logging.getLogger("ray.serve")

HEALTH_TIMEOUT_SECONDS = 2.0
# A model that answered a request this long ago is alive, even if it is too busy to say so.
SEEN_RECENTLY_SECONDS = 10.0


class Ingress:
    """Take requests and pass them to the fuser. Ray Serve calls `__serve_build_asgi_app__` once per replica."""

    def __init__(self, fuser: DeploymentHandle, config: ServeConfig, key_digest: bytes | None) -> None:
        check_exposure(find_address()[0], key_digest)
        self.fuser = fuser
        self.config = config
        self.key_digest = key_digest
        self.answered_at = float("-inf")

    def __serve_build_asgi_app__(self) -> KeyGuard:
        return KeyGuard(BodyGuard(build_api(self), self.config.max_body_bytes), self.key_digest)

    async def fuse(self, source: bytes, target: bytes, options: FuseOptions) -> FuseReply | Problem:
        """Let a replica fuse; overload, lost replicas and lateness become problems."""
        timeout = self.config.request_timeout_seconds
        try:
            reply: FuseReply | Problem = await asyncio.wait_for(self.ask("fuse", source, target, options), timeout)
        except BackPressureError:
            return unavailable("busy", "too many requests are waiting")
        except (RayActorError, DeploymentUnavailableError):
            return unavailable("model_lost", "the model was lost while it worked on this request and is coming back")
        except TimeoutError:
            return Problem(504, "timeout", "Took too long", f"no answer within {timeout:g} seconds; try again later")
        self.answered_at = time.monotonic()
        return reply

    async def find_model(self) -> ModelCard | Problem:
        """Ask the fuser what it holds; it exists only once its model is loaded and warm."""
        try:
            card: ModelCard = await asyncio.wait_for(self.ask("describe"), HEALTH_TIMEOUT_SECONDS)
        except (TimeoutError, RayActorError, DeploymentUnavailableError, BackPressureError):
            return unavailable("not_ready", "the model is not loaded yet, or does not answer")
        return card

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the fuser deployment."""
        return await getattr(self.fuser, method).remote(*arguments)

    @property
    def seen_recently(self) -> bool:
        """Tell whether the fuser has answered a request a moment ago."""
        return time.monotonic() - self.answered_at < SEEN_RECENTLY_SECONDS


def find_address() -> tuple[str, int]:
    """Ask Ray Serve on which host and port it listens: its own settings, not the application's, decide that."""
    from ray.serve.context import _get_global_client

    options = _get_global_client().http_config
    return str(options.host), int(options.port)


def unavailable(reason: str, detail: str) -> Problem:
    return Problem(503, reason, "Not available now", f"{detail}; try again in a moment", headers={"Retry-After": "1"})


def answer(problem: Problem) -> Response:
    """Turn a problem into a response."""
    return Response(problem.body(), problem.status, problem.headers, PROBLEM_TYPE)


def read_options(
    request: Request,
    faces_in_form: Annotated[Faces | None, Form(alias="faces")] = None,
    faces_in_query: Annotated[Faces | None, Query(alias="faces")] = None,
    format_in_form: Annotated[PictureFormat | None, Form(alias="format")] = None,
    format_in_query: Annotated[PictureFormat | None, Query(alias="format")] = None,
) -> FuseOptions:
    """Read the choices of a client from the form or the query; the form wins."""
    return FuseOptions(
        faces=faces_in_form or faces_in_query or "largest",
        picture_format=format_in_form or format_in_query or request.app.state.default_format,
    )


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
        source: UploadFile, target: UploadFile, options: Annotated[FuseOptions, Depends(read_options)]
    ) -> Response:
        reply = await service.fuse(await source.read(), await target.read(), options)
        if isinstance(reply, Problem):
            return answer(reply)
        headers = {
            "X-FusionRay-Model": reply.model,
            "X-FusionRay-Bundle": reply.bundle,
            "X-FusionRay-Faces": str(reply.num_faces),
        }
        return Response(reply.data, 200, headers, reply.media_type)

    @api.get("/healthz")
    async def healthz() -> Response:
        found = await service.find_model()
        if isinstance(found, Problem) and not service.seen_recently:
            return answer(found)
        return Response(b'{"status":"ok"}', media_type="application/json")

    @api.get("/v1/models", response_model=None)
    async def models() -> Response | dict[str, Any]:
        found = await service.find_model()
        return answer(found) if isinstance(found, Problem) else {"models": [asdict(found)]}

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
        reason = "too_large" if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else status.name.lower()
        headers = dict(error.headers or {})
        return answer(Problem(error.status_code, reason, status.phrase, str(error.detail), headers=headers))

    @api.exception_handler(Exception)
    async def report_fault(_: Request, error: Exception) -> Response:
        logger.error("request failed", exc_info=error)
        return answer(Problem(500, "internal", "Internal error", "the request failed; the log of the service says why"))
