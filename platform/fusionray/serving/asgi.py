"""The types of ASGI, and what middleware reads and answers without a framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fusionray.serving.schema import PROBLEM_TYPE, Problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


async def send_problem(problem: Problem, send: Send) -> None:
    """Send a problem document as the whole answer."""
    body = problem.body()
    headers = {"content-type": PROBLEM_TYPE, "content-length": str(len(body)), **problem.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def find_header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key.lower() == name), None)


def find_path(scope: Scope) -> str:
    """Return the path of a request below the root of the application."""
    path: str = scope.get("path", "").removeprefix(scope.get("root_path", ""))
    return path
