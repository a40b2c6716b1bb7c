"""The web page: a few files, read once, with headers that let it talk to this service only."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).with_name("page")
# All files that a client can request. Each has a route of its own, so no path of a request is ever opened.
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/api.js": ("api.js", "text/javascript; charset=utf-8"),
    "/page/state.js": ("state.js", "text/javascript; charset=utf-8"),
    "/page/wells.js": ("wells.js", "text/javascript; charset=utf-8"),
    "/page/tasks.js": ("tasks.js", "text/javascript; charset=utf-8"),
    "/page/result.js": ("result.js", "text/javascript; charset=utf-8"),
    "/page/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    # Previews and results are shown from memory.
    "img-src": "'self' blob: data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
DENIED_FEATURES = (
    "accelerometer",
    "camera",
    "display-capture",
    "geolocation",
    "gyroscope",
    "hid",
    "magnetometer",
    "microphone",
    "midi",
    "payment",
    "serial",
    "usb",
)


def page_headers() -> dict[str, str]:
    """Build the headers that limit the page: it may run and load its own files, and call this service."""
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": ", ".join(f"{name}=()" for name in DENIED_FEATURES),
        # The file names never change, so a browser revalidates each time; the answer is mostly an empty 304.
        "Cache-Control": "no-cache",
    }


def page_routes() -> list[Route]:
    """Read the files and make a route for each, for GET and HEAD. They hold no secret, so they need no API key."""
    return [
        Route(path, answer_with((FOLDER / name).read_bytes(), media_type), name=f"page:{name}")
        for path, (name, media_type) in FILES.items()
    ]


def answer_with(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    """Build the endpoint of one file.

    Source: RFC 9110, section 13.1.2 (If-None-Match compares weakly).
    """
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**page_headers(), "ETag": tag}

    async def answer(request: Request) -> Response:
        known = {part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")}
        if known & {tag, "*"}:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return answer
