"""Refuse requests that a foreign web page sends through the browser of somebody on this machine."""

from __future__ import annotations

from urllib.parse import urlsplit

from fusionray.serving.addresses import is_loopback
from fusionray.serving.asgi import AsgiApp, Receive, Scope, Send, find_header, send_problem
from fusionray.serving.config_sections.access import AccessConfig
from fusionray.serving.http.middleware.request_limits import PROBE_PATHS
from fusionray.serving.schema import Problem

FORWARDED_HEADERS = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host")


class OriginMiddleware:
    """Check the headers by which browsers and proxies say where a request comes from.

    Pages of the service itself, and clients that are no browsers, pass.
    """

    def __init__(self, app: AsgiApp, access: AccessConfig, *, has_keys: bool) -> None:
        self.app = app
        self.access = access
        self.has_keys = has_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        problem = self.find_problem(scope) if scope["type"] == "http" and path not in PROBE_PATHS else None
        if problem is None:
            await self.app(scope, receive, send)
        else:
            await send_problem(problem, send)

    def find_problem(self, scope: Scope) -> Problem | None:
        """Return why a request is refused; None if it is not."""
        host = (find_header(scope, b"host") or b"").decode("latin-1")
        origin = find_header(scope, b"origin")
        if origin is not None and not self.knows_origin(origin.decode("latin-1"), host):
            return refuse("foreign_origin", "pages of other sites may not use this service", "access.origins")
        if self.has_keys:
            return None
        if not self.knows_host(host):
            return refuse("unknown_host", f"this service is not reached as {host[:100]!r}", "access.hosts")
        if not self.access.forwarded and any(find_header(scope, name) is not None for name in FORWARDED_HEADERS):
            detail = "a service without keys is not meant to be published by a proxy; set keys"
            return refuse("forwarded", detail, "access.forwarded")
        return None

    def knows_origin(self, origin: str, host: str) -> bool:
        if origin in self.access.origins:
            return True
        try:
            return host != "" and urlsplit(origin).netloc == host
        except ValueError:
            return False

    def knows_host(self, host: str) -> bool:
        name = read_name(host)
        return name in self.access.hosts or (name is not None and is_loopback(name))


def read_name(host: str) -> str | None:
    """Read the name or address in a Host header, without its port; None if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def refuse(reason: str, detail: str, setting: str) -> Problem:
    """Build the refusal; the operator may permit such requests by a setting."""
    return Problem(403, reason, "Not allowed", f"{detail}, or permit it by the setting {setting}")
