"""Metrics of every HTTP request by its route; Ray Serve's own label all routes of the service `/`."""

from __future__ import annotations

import time

from fusionray.serving.asgi import AsgiApp, Message, Receive, Scope, Send
from fusionray.serving.metrics import HttpMetrics

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# For a client that left before there was an answer, as nginx counts it.
CLIENT_LEFT = 499


class RouteMetricsMiddleware:
    """Count each request and its time, by the template of its route (`/v1/jobs/{job}`), method and status."""

    def __init__(self, app: AsgiApp, metrics: HttpMetrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = CLIENT_LEFT
        started = time.perf_counter()

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_seen)
        finally:
            # Clients choose methods; a label must have few values.
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.count(find_route(scope), method, status, (time.perf_counter() - started) * 1000.0)


def find_route(scope: Scope) -> str:
    """Return the template of the route that answered; "page" for a file of the web page, "none" without a route.

    A request that is refused before it is routed, as for a wrong key, has none.
    """
    path: str | None = getattr(scope.get("route"), "path", None)
    return path or ("page" if "endpoint" in scope else "none")
