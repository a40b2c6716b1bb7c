"""A fake of the serving API: it answers like the real one, without a model, and can be scripted by a test."""

from __future__ import annotations

import asyncio
import io
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import uvicorn
from PIL import Image, UnidentifiedImageError
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from fusionray.serving.schema import PROBLEM_TYPE, Problem
from tests.support.pictures import Picture, draw_empty

MODELS = [
    {
        "name": "paired-128", "size": 128, "template": "arcface_128", "bundle": "5e" * 32, "licence": "Apache-2.0",
        "provider": "CPUExecutionProvider", "providers": ["CPUExecutionProvider"], "threads": 2,
        "runtime": "onnxruntime", "precision": "fp32", "default": True,
    },
    {
        "name": "tiny-64", "size": 64, "template": "arcface_128", "bundle": "7a" * 32, "licence": "Apache-2.0",
        "provider": "CPUExecutionProvider", "providers": ["CPUExecutionProvider"], "threads": 2,
        "runtime": "onnxruntime", "precision": "int8", "default": False,
    },
]  # fmt: skip
STYLE_MODEL = {
    "name": "style-small", "task": "style_transfer", "inputs": ["content", "style"], "size": 256, "bundle": "9c" * 32,
    "licence": "Apache-2.0", "provider": "CPUExecutionProvider", "providers": ["CPUExecutionProvider"], "threads": 2,
    "runtime": "onnxruntime", "precision": "fp32", "default": False,
}  # fmt: skip
TIMING = "decode;dur=8.4, detect;dur=21.7, read;dur=12.9, queue;dur=3.1, fuse;dur=143.2, paste;dur=9.6, encode;dur=17.5, total;dur=216.4"  # noqa: E501
EXPIRES_AT = "2031-05-06T07:08:09Z"


def encode(picture: Picture, picture_format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, picture_format)
    return buffer.getvalue()


class Refusal(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


@dataclass
class StandIn:
    """The scripted behaviour of the API, and the requests that it received."""

    key: str | None = None
    consent: str | None = None
    ready: bool = True
    provenance: str | None = "c2pa"
    models: tuple[dict[str, object], ...] = tuple(MODELS)
    problem: Problem | None = None
    # While it is cleared, a fusion waits.
    go_on: threading.Event = field(default_factory=threading.Event)
    asked: list[dict[str, str]] = field(default_factory=list)
    kept: dict[str, Picture] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.go_on.set()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/stylize", self.stylize, methods=["POST"]),
            Route("/v1/fuse", self.fuse, methods=["POST"]),
            Route("/v1/identities", self.keep, methods=["POST"]),
            Route("/v1/identities", self.forget, methods=["DELETE"]),
        ]

    def check(self, request: Request) -> None:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            raise Refusal(Problem(401, "unauthorized", "API key needed", "this service wants an API key"))

    async def list_models(self, request: Request) -> Response:
        self.check(request)
        if not self.ready:
            raise Refusal(Problem(503, "not_ready", "Not available now", "the model is not loaded yet"))
        return JSONResponse({"models": self.models})

    async def receive(self, request: Request) -> tuple[dict[str, str], dict[str, tuple[str, bytes]]]:
        """Read the fields and files of a form, and answer as the script says."""
        self.check(request)
        async with request.form() as form:
            fields = {name: value for name, value in form.items() if isinstance(value, str)}
            files = {
                name: (value.filename or "", await value.read())
                for name, value in form.items()
                if isinstance(value, UploadFile)
            }
        self.asked.append(fields | {name: filename for name, (filename, _) in files.items()})
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)
        if self.problem is not None:
            raise Refusal(self.problem)
        return fields, files

    async def stylize(self, request: Request) -> Response:
        """Turn the content upside down."""
        fields, files = await self.receive(request)
        painted = read_picture("content", files["content"][1])[::-1]
        read_picture("style", files["style"][1])
        picture_format = fields.get("format", "png")
        headers = {"X-FusionRay-Model": "style-small", "X-FusionRay-Provenance": "c2pa", "Server-Timing": "run;dur=5"}
        return Response(encode(painted, picture_format), headers=headers, media_type=f"image/{picture_format}")

    async def fuse(self, request: Request) -> Response:
        fields, files = await self.receive(request)
        if self.consent is not None and fields.get("consent") != self.consent:
            raise Refusal(Problem(403, "consent_missing", "Consent needed", "this service wants a consent token"))
        if "identity" in fields:
            if fields["identity"] not in self.kept:
                raise Refusal(Problem(404, "unknown_identity", "Unknown identity", "it has expired, or never was"))
            source = self.kept[fields["identity"]]
        else:
            source = read_picture("source", files["source"][1])
        target = read_picture("target", files["target"][1])
        # The "fusion" pastes the source over the first person of the target.
        side = target.shape[0]
        fused = target.copy()
        fused[:, :side] = np.asarray(Image.fromarray(source).resize((side, side)))
        boxes = [
            (left + side // 4, side // 5, side // 2, side * 3 // 5)
            for left in range(0, target.shape[1] - side + 1, side)
        ]
        if fields["faces"] == "largest":
            boxes = boxes[:1]
        picture_format = fields.get("format", "png")
        headers = {
            "X-FusionRay-Model": fields.get("model", "paired-128"),
            "X-FusionRay-Bundle": "5e" * 32,
            "X-FusionRay-Faces": str(len(boxes)),
            "X-FusionRay-Boxes": ";".join(",".join(map(str, box)) for box in boxes),
            "Server-Timing": TIMING,
            "X-Request-Id": "req-0001",
        }
        if self.provenance is not None:
            headers["X-FusionRay-Provenance"] = self.provenance
        return Response(encode(fused, picture_format), headers=headers, media_type=f"image/{picture_format}")

    async def keep(self, request: Request) -> Response:
        self.check(request)
        async with request.form() as form:
            upload = form["source"]
            assert isinstance(upload, UploadFile)
            source = read_picture("source", await upload.read())
        identity = f"id_{secrets.token_hex(8)}"
        self.kept[identity] = source
        told = {"identity": identity, "expires_at": EXPIRES_AT, "box": [1, 2, 3, 4]}
        return JSONResponse(told, 201)

    async def forget(self, request: Request) -> Response:
        self.check(request)
        if self.kept.pop(request.headers["x-fusionray-identity"], None) is None:
            raise Refusal(Problem(404, "unknown_identity", "Unknown identity", "it has expired, or never was"))
        return Response(status_code=204)


def read_picture(role: str, data: bytes) -> Picture:
    assert role in {"source", "target", "content", "style"}
    try:
        picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except UnidentifiedImageError:
        detail = f"{role} picture: no kind of picture that is known here"
        raise Refusal(Problem(415, "not_an_image", "Not a picture", detail, picture=role)) from None
    if role in {"source", "target"} and picture.shape == draw_empty().shape:
        detail = f"no face was found in the {role} picture"
        raise Refusal(Problem(422, "no_face", "No face found", detail, picture=role))
    return picture


async def refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    problem = error.problem
    return Response(problem.body(), problem.status, {"X-Request-Id": "req-0002"} | problem.headers, PROBLEM_TYPE)


@contextmanager
def serve_beside(stand_in: StandIn, routes: list[Route]) -> Iterator[str]:
    """Serve the fake and other routes on a free port of this machine; yield the address."""
    app = Starlette(routes=[*routes, *stand_in.routes()], exception_handlers={Refusal: refuse})
    config = uvicorn.Config(app, log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stand_in.go_on.set()
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive(), "the server did not stop"
