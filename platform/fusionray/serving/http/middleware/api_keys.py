"""The middleware that checks the API key before anything else, and finds the caller of a request."""

from __future__ import annotations

import re
import uuid

from fusionray.safety.audit import ANONYMOUS
from fusionray.serving.asgi import AsgiApp, Receive, Scope, Send, find_header, find_path, send_problem
from fusionray.serving.auth.api_keys import ApiKeyStore
from fusionray.serving.auth.callers import Caller
from fusionray.serving.auth.key_file import ApiKey
from fusionray.serving.http.middleware.request_limits import PROBE_PATHS
from fusionray.serving.http.static_page import FILES
from fusionray.serving.schema import Problem

# Health probes carry no key and their answers reveal nothing; the page asks its user for a key.
OPEN_PATHS = frozenset({*PROBE_PATHS, *FILES})
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class ApiKeyMiddleware:
    """Require `Authorization: Bearer KEY` if any key is set, and put the `Caller` into the state of the request."""

    def __init__(self, app: AsgiApp, keys: ApiKeyStore) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # No route is a WebSocket, so nobody needs to present a key for one.
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        key = None if self.keys.is_empty else self.find_key(scope)
        if key is None and not self.keys.is_empty and find_path(scope) not in OPEN_PATHS:
            detail = "this service wants the header `Authorization: Bearer KEY` with an API key"
            challenge = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            await send_problem(Problem(401, "unauthorized", "API key needed", detail, headers=challenge), send)
            return
        name = ANONYMOUS if key is None else key.name
        scope.setdefault("state", {})["caller"] = Caller(name, key, find_request_id(scope))
        await self.app(scope, receive, send)

    def find_key(self, scope: Scope) -> ApiKey | None:
        scheme, _, key = (find_header(scope, b"authorization") or b"").partition(b" ")
        return self.keys.find(key.strip().decode("utf-8", "surrogateescape")) if scheme.lower() == b"bearer" else None


def find_request_id(scope: Scope) -> str:
    """Read the request's ID that a proxy or client sent, or make one if it is missing or malformed."""
    given = find_header(scope, b"x-request-id") or b""
    return given.decode() if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
