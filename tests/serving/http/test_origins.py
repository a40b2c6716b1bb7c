"""A foreign page, a name that leads here and a proxy do not reach a service without keys."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from fusionray.serving.asgi import Receive, Scope, Send
from fusionray.serving.config_sections.access import AccessConfig
from fusionray.serving.http.middleware.origins import OriginMiddleware


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def ask(access: AccessConfig, *, has_keys: bool = False, path: str = "/v1/fuse", **headers: str) -> str:
    """Send a request; return "hello", or the reason of the refusal."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=OriginMiddleware(hello, access, has_keys=has_keys))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.post(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    answer = asyncio.run(send())
    if answer.status_code == 200:
        return answer.text
    assert answer.status_code == 403
    reason: str = answer.json()["reason"]
    return reason


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "localhost", "[::1]:8000", "127.3.4.5"])
def test_names_of_loopback_are_answered(host: str) -> None:
    assert ask(AccessConfig(), host=host) == "hello"
    assert ask(AccessConfig(), host=host, origin=f"http://{host}") == "hello"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "192.168.1.5:8000", "", "[::1", "localhost.evil"]
)
def test_other_names_are_refused_without_keys_unless_they_are_listed(host: str) -> None:
    assert ask(AccessConfig(), host=host) == "unknown_host"
    assert ask(AccessConfig(), has_keys=True, host=host) == "hello"
    assert ask(AccessConfig(), path="/readyz", host=host) == "hello"
    assert ask(AccessConfig(hosts=("evil.example", "192.168.1.5")), host="192.168.1.5:8000") == "hello"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:9000", "http://localhost", "http://[", ""]
)
@pytest.mark.parametrize("has_keys", [True, False])
def test_pages_of_other_origins_are_refused_unless_they_are_listed(origin: str, *, has_keys: bool) -> None:
    assert ask(AccessConfig(), has_keys=has_keys, host="127.0.0.1:8000", origin=origin) == "foreign_origin"
    assert ask(AccessConfig(origins=(origin,)), has_keys=has_keys, host="127.0.0.1:8000", origin=origin) == "hello"


@pytest.mark.parametrize("header", ["forwarded", "x_forwarded_for", "x_forwarded_host"])
def test_forwarded_requests_are_refused_without_keys(header: str) -> None:
    assert ask(AccessConfig(), **{header: "203.0.113.7"}) == "forwarded"
    assert ask(AccessConfig(), has_keys=True, **{header: "203.0.113.7"}) == "hello"
    assert ask(AccessConfig(forwarded=True), **{header: "203.0.113.7"}) == "hello"
