"""Middleware before the application: limits on concurrency and bodies, disconnects."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from starlette.exceptions import HTTPException

from fusionray.serving.asgi import AsgiApp, Message, Receive, Scope, Send, find_header, find_path, send_problem
from fusionray.serving.metrics import RequestMetrics
from fusionray.serving.pipeline.memory_budget import MemoryBudget
from fusionray.serving.schema import Problem, unavailable

# Health probes are answered also while all other requests are refused.
PROBE_PATHS = frozenset({"/healthz", "/readyz"})


@dataclass
class RequestPool:
    """Requests that share a limit. `pattern` matches their method and path, `POST /v1/fuse`; `what` they are."""

    pattern: re.Pattern[str]
    max_requests: int
    what: str
    num_inside: int = 0

    def takes(self, scope: Scope) -> bool:
        """Tell whether a request belongs to the pool."""
        return self.pattern.fullmatch(f"{scope.get('method')} {find_path(scope)}") is not None


class ConcurrencyLimitMiddleware:
    """Work on at most so many requests at once as their pool allows; answer 503 to more, before their bodies are read.

    A request belongs to the first of the pools that takes it, or to all others, of which `max_requests` are allowed.
    """

    def __init__(
        self, app: AsgiApp, max_requests: int, metrics: RequestMetrics, pools: Sequence[RequestPool] = ()
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.pools = (*pools, RequestPool(re.compile(".*", re.DOTALL), max_requests, "requests are being worked on"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or find_path(scope) in PROBE_PATHS:
            await self.app(scope, receive, send)
            return
        pool = next(pool for pool in self.pools if pool.takes(scope))
        if pool.num_inside >= pool.max_requests:
            problem = unavailable("busy", f"{pool.num_inside} {pool.what}")
            self.metrics.count_end(problem.status, problem.reason, "")
            await send_problem(problem, send)
            return
        self.enter(pool, 1)
        try:
            await self.app(scope, receive, send)
        finally:
            self.enter(pool, -1)

    def enter(self, pool: RequestPool, number: int) -> None:
        """Count requests into a pool, or out of it."""
        pool.num_inside += number
        self.metrics.inside.set(sum(each.num_inside for each in self.pools))


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


@dataclass(frozen=True)
class BodyLimit:
    """The largest body of a request, the longest time of its upload, and the memory for bodies that are kept in it."""

    max_bytes: int
    timeout_seconds: float = 30.0
    memory: MemoryBudget | None = None

    def refuse_size(self) -> Problem:
        """Build the problem of a body that is too long."""
        detail = f"the request is longer than {self.max_bytes} bytes; send smaller pictures"
        return Problem(413, "too_large", "Request too large", detail, headers={"Connection": "close"})

    def count(self, receive: Receive) -> Receive:
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
            if num_bytes > self.max_bytes:
                # The form parser passes on no other exception; its handler answers with the same problem.
                refusal = self.refuse_size()
                raise HTTPException(refusal.status, refusal.detail, refusal.headers)
            return message

        return receive_counted


class BodyLimitMiddleware:
    """Refuse a body that is too long: by its Content-Length at once, otherwise as soon as it exceeds the limit.

    A body that does not arrive in time is answered 408. `routes` are the limits of single routes: `POST /v1/jobs`.

    Bodies of one limit share its memory: a request holds its stated length, or the longest if it states none, from
    before its body is read until it is answered. So what has begun never waits for what has not. A request that waits
    longer than its upload may take is answered 503.
    """

    def __init__(self, app: AsgiApp, limit: BodyLimit, routes: Mapping[str, BodyLimit] | None = None) -> None:
        self.app = app
        self.limit = limit
        self.routes = routes or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.routes.get(f"{scope.get('method')} {find_path(scope)}", self.limit)
        stated = find_header(scope, b"content-length") or b"0"
        if not stated.isdigit() or int(stated[:20]) > limit.max_bytes:
            await send_problem(limit.refuse_size(), send)
            return
        is_chunked = find_header(scope, b"transfer-encoding") is not None
        expected = limit.max_bytes if is_chunked else int(stated)
        async with AsyncExitStack() as held:
            # Requests without a body pass those that wait.
            if expected and limit.memory is not None:
                try:
                    async with asyncio.timeout(limit.timeout_seconds):
                        await held.enter_async_context(limit.memory.hold(expected))
                except TimeoutError:
                    await send_problem(unavailable("busy", "the uploads of other requests fill the memory"), send)
                    return
            await self.app(scope, limit.count(receive), send)
