from __future__ import annotations

import asyncio
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fusionray.serving.http.middleware.route_metrics import RouteMetricsMiddleware


def build_app() -> FastAPI:
    api = FastAPI()

    @api.get("/v1/jobs/{job}")
    async def look(job: str) -> str:
        if job == "lost":
            raise HTTPException(404)
        return job

    async def page(_: object) -> PlainTextResponse:
        return PlainTextResponse("page")

    api.router.routes.append(Route("/page.css", page))
    return api


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/jobs/secret-handle", ("/v1/jobs/{job}", "GET", 200)),
        ("GET", "/v1/jobs/lost", ("/v1/jobs/{job}", "GET", 404)),
        ("GET", "/page.css", ("page", "GET", 200)),
        ("GET", "/nowhere/at/all", ("none", "GET", 404)),
        ("BREW", "/nowhere", ("none", "other", 404)),
    ],
)
def test_requests_are_counted_by_the_template_of_their_route(
    method: str, path: str, expected: tuple[str, str, int]
) -> None:
    metrics = Mock()

    async def ask() -> None:
        app = RouteMetricsMiddleware(build_app(), metrics)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await client.request(method, path)

    asyncio.run(ask())
    (counted,) = metrics.count.call_args_list
    assert counted.args[:3] == expected
    assert counted.args[3] >= 0


def test_a_request_that_is_not_answered_is_counted_too() -> None:
    metrics = Mock()

    async def leave(*_: object) -> None:
        raise asyncio.CancelledError

    async def ask() -> None:
        scope = {"type": "http", "method": "POST", "path": "/v1/fuse"}
        with pytest.raises(asyncio.CancelledError):
            await RouteMetricsMiddleware(leave, metrics)(scope, Mock(), Mock())

    asyncio.run(ask())
    assert metrics.count.call_args.args[:3] == ("none", "POST", 499)
