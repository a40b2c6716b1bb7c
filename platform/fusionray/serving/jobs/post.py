"""Post to a server that need not be friendly: one bounded attempt."""

from __future__ import annotations

import socket
import ssl
import threading
from http.client import HTTPConnection, HTTPSConnection
from urllib.parse import SplitResult, urlsplit

# What is read of the body of an answer, so that a server that writes it does not see a reset.
MAX_ANSWER_BYTES = 1024
PORTS = {"https": 443, "http": 80}


def read_url(url: str) -> SplitResult | None:
    """Split the URL of a server; None if it is not https or http, or holds a user, a fragment or no host."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in PORTS and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    plain = all("!" <= letter <= "~" for letter in url) and "\\" not in url
    return parts if usable and plain and "@" not in parts.netloc and not parts.fragment else None


def name_host(parts: SplitResult) -> str:
    """Name the host of a URL as settings do: in lower case, with the port unless it is that of the scheme."""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else str(parts.hostname)
    return host if parts.port in (None, PORTS[parts.scheme]) else f"{host}:{parts.port}"


def post(url: str, body: bytes, headers: dict[str, str], timeout_seconds: float) -> int:
    """Post a body once; return the status of the answer. Redirects are not followed, and no proxy is used.

    Raises: OSError, http.client.HTTPException if no answer comes within the time.
    """
    parts = urlsplit(url)
    host, port = str(parts.hostname), parts.port or PORTS[parts.scheme]
    connection: HTTPConnection
    if parts.scheme == "https":
        connection = HTTPSConnection(host, port, timeout=timeout_seconds, context=ssl.create_default_context())
    else:
        connection = HTTPConnection(host, port, timeout=timeout_seconds)
    # The time-out of a socket begins anew with every byte that arrives, and with every address of the host.
    expired = threading.Event()
    watch = threading.Timer(timeout_seconds, shut, [connection, expired])
    watch.daemon = True
    watch.start()
    try:
        connection.connect()
        if expired.is_set():
            raise TimeoutError("connecting took too long")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, {**headers, "Connection": "close"})
        answer = connection.getresponse()
        answer.read(MAX_ANSWER_BYTES)
        return answer.status
    finally:
        watch.cancel()
        connection.close()


def shut(connection: HTTPConnection, expired: threading.Event) -> None:
    """End the use of a connection from another thread; one that has no socket yet learns of it by `expired`."""
    expired.set()
    if connection.sock is not None:
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            connection.close()
