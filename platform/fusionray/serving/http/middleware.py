"""Middleware before the application: limits on concurrency and bodies, disconnects; and the operator's API key."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

from starlette.exceptions import HTTPException

from fusionray.errors import ConfigInvalid
from fusionray.serving.metrics import RequestMetrics
from fusionray.serving.pipeline.memory_budget import MemoryBudget
from fusionray.serving.schema import PROBLEM_TYPE, Problem, unavailable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY_VARIABLE = "FUSIONRAY_API_KEY"
SHORTEST_KEY = 16
# Health probes are answered also while all other requests are refused.
PROBE_PATHS = frozenset({"/healthz", "/readyz"})


def read_key_digest() -> bytes | None:
    """Read the API key from the environment; return its sha256, or None if there is no key.

    Raises: ConfigInvalid if the key is too short to withstand guessing.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        return None
    if len(key) < SHORTEST_KEY:
        raise ConfigInvalid(
            f"{KEY_VARIABLE}: a key needs at least {SHORTEST_KEY} characters; "
            "make one with `python -c 'import secrets; print(secrets.token_urlsafe())'`"
        )
    return hashlib.sha256(key.encode()).digest()


async def send_problem(problem: Problem, send: Send) -> None:
    """Send a problem document as the whole answer."""
    body = problem.body()
    headers = {"content-type": PROBLEM_TYPE, "content-length": str(len(body)), **problem.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def find_header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key.lower() == name), None)


class ConcurrencyLimitMiddleware:
    """Work on at most `max_requests` requests at once; answer 503 to more, before their bodies are read."""

    def __init__(self, app: AsgiApp, max_requests: int, metrics: RequestMetrics) -> None:
        self.app = app
        self.max_requests = max_requests
        self.metrics = metrics
        self.num_inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path in PROBE_PATHS:
            await self.app(scope, receive, send)
            return
        if self.num_inside >= self.max_requests:
            problem = unavailable("busy", f"{self.num_inside} requests are being worked on")
            self.metrics.count_end(problem.status, problem.reason, "")
            await send_problem(problem, send)
            return
        self.num_inside += 1
        self.metrics.inside.set(self.num_inside)
        try:
            await self.app(scope, receive, send)
        finally:
            self.num_inside -= 1
            self.metrics.inside.set(self.num_inside)


class DisconnectMiddleware:
    """Cancel the work on a request whose client disconnects."""

    def __init__(self, app: AsgiApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        work = asyncio.current_task()
        assert work is not None
        watcher: asyncio.Task[Message] | None = None
        abandoned = False

        def give_up(watched: asyncio.Task[Message]) -> None:
            nonlocal abandoned
            abandoned = not watched.cancelled()
            if abandoned:
                work.cancel()

        async def receive_watched() -> Message:
            nonlocal watcher
            if watcher is not None:
                return await asyncio.shield(watcher)
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                # After the whole body, only the client's disconnect can follow.
                watcher = asyncio.create_task(receive())  # type: ignore[arg-type]
                watcher.add_done_callback(give_up)
            return message

        try:
            await self.app(scope, receive_watched, send)
        except asyncio.CancelledError:
            if not abandoned:
                raise
            work.uncancel()
        finally:
            if watcher is not None:
                watcher.remove_done_callback(give_up)
                watcher.cancel()


class BodyLimitMiddleware:
    """Refuse a body that is too long: by its Content-Length at once, otherwise as soon as it exceeds the limit.

    A body that does not arrive within `timeout_seconds` is answered 408. The bodies of all requests share `uploads`: a
    request holds its stated length, or the limit if it states none, from before its body is read until it is answered.
    So what has begun never waits for what has not. A request that waits longer than `timeout_seconds` is answered 503.
    """

    def __init__(
        self, app: AsgiApp, max_body_bytes: int, timeout_seconds: float = 30.0, uploads: MemoryBudget | None = None
    ) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.timeout_seconds = timeout_seconds
        self.uploads = uploads or MemoryBudget(max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stated = find_header(scope, b"content-length") or b"0"
        if not stated.isdigit() or int(stated[:20]) > self.max_body_bytes:
            await send_problem(self.refusal(), send)
            return
        is_chunked = find_header(scope, b"transfer-encoding") is not None
        expected = self.max_body_bytes if is_chunked else int(stated)
        async with AsyncExitStack() as held:
            # Requests without a body pass those that wait.
            if expected:
                try:
                    async with asyncio.timeout(self.timeout_seconds):
                        await held.enter_async_context(self.uploads.hold(expected))
                except TimeoutError:
                    await send_problem(unavailable("busy", "the uploads of other requests fill the memory"), send)
                    return
            await self.app(scope, self.limit(receive), send)

    def limit(self, receive: Receive) -> Receive:
        """Wrap `receive` so that it counts the bytes of the body, and the time that they take."""
        num_bytes = 0
        complete = False
        deadline = asyncio.get_running_loop().time() + self.timeout_seconds

        async def receive_counted() -> Message:
            nonlocal num_bytes, complete
            if complete:
                # After the body only the client's disconnect can follow, which may take long.
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                detail = f"the request took longer than {self.timeout_seconds:g} seconds to arrive; send it faster"
                raise HTTPException(408, detail, {"Connection": "close"}) from None
            complete = not message.get("more_body", False)
            num_bytes += len(message.get("body", b""))
            if num_bytes > self.max_body_bytes:
                # The form parser passes on no other exception; its handler answers with the same problem.
                refusal = self.refusal()
                raise HTTPException(refusal.status, refusal.detail, refusal.headers)
            return message

        return receive_counted

    def refusal(self) -> Problem:
        """Build the problem of a body that is too long."""
        detail = f"the request is longer than {self.max_body_bytes} bytes; send smaller pictures"
        return Problem(413, "too_large", "Request too large", detail, headers={"Connection": "close"})
