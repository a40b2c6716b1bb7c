"""Who asks: API keys are looked at before anything else of a request."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from fusionray.safety.audit import ANONYMOUS
from fusionray.serving.auth.api_keys import ApiKey, ApiKeyStore
from fusionray.serving.http.middleware import AsgiApp, Receive, Scope, Send, find_header, send_problem
from fusionray.serving.http.static_page import FILES
from fusionray.serving.schema import Problem

# Probes of an orchestrator carry no key, and their answers tell nothing; the page asks for one itself.
OPEN_PATHS = frozenset({"/healthz", "/readyz", *FILES})
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Caller:
    """The owner of an API key, or anybody where none is asked for; `request` names the request in logs."""

    name: str = ANONYMOUS
    key: ApiKey | None = None
    request: str = ""


class ApiKeyMiddleware:
    """Let a request through only with `Authorization: Bearer KEY`, if keys are asked for; say behind whose it is."""

    def __init__(self, app: AsgiApp, ring: ApiKeyStore) -> None:
        self.app = app
        self.ring = ring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # There are none here; and none that would come in without a key.
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        key = None if self.ring.is_empty else self.find_key(scope)
        if key is None and not self.ring.is_empty and path not in OPEN_PATHS:
            detail = "this service wants the header `Authorization: Bearer KEY` with an API key"
            challenge = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            await send_problem(Problem(401, "unauthorized", "API key needed", detail, headers=challenge), send)
            return
        name = ANONYMOUS if key is None else key.name
        scope.setdefault("state", {})["caller"] = Caller(name, key, find_request_id(scope))
        await self.app(scope, receive, send)

    def find_key(self, scope: Scope) -> ApiKey | None:
        scheme, _, key = (find_header(scope, b"authorization") or b"").partition(b" ")
        return self.ring.find(key.strip().decode("utf-8", "surrogateescape")) if scheme.lower() == b"bearer" else None


def find_request_id(scope: Scope) -> str:
    """Take the name that a proxy or client gave the request, if it is a sound one."""
    given = find_header(scope, b"x-request-id") or b""
    return given.decode() if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
