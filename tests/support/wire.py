"""Raw HTTP over sockets, for requests that no client library sends."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

HOST = "127.0.0.1"
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """One answer as received; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        """Return the reason of a problem document."""
        reason: str = json.loads(self.body)["reason"]
        return reason


@dataclass(frozen=True)
class Talk:
    """The answers on one connection, and whether the server closed it."""

    answers: list[Answer]
    closed: bool
    rest: bytes = b""


def read_answers(data: bytes) -> tuple[list[Answer], bytes]:
    """Parse the complete answers at the start of the received bytes; skip interim ones (1xx)."""
    answers = []
    while True:
        head, blank, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        if not blank or not first.startswith("HTTP/1."):
            return answers, data
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split(" ")[1])
        found = read_body(headers, rest) if status >= 200 else (b"", rest)
        if found is None:
            return answers, data
        body, data = found
        if status >= 200:
            answers.append(Answer(status, headers, body))


def read_body(headers: dict[str, str], data: bytes) -> tuple[bytes, bytes] | None:
    """Return the body and the bytes after it; None if the body is incomplete."""
    if "chunked" not in headers.get("transfer-encoding", ""):
        length = int(headers.get("content-length", 0))
        return (data[:length], data[length:]) if len(data) >= length else None
    body = b""
    while True:
        size, line_end, data = data.partition(b"\r\n")
        if not line_end or len(data) < int(size, 16) + 2:
            return None
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if length == 0:
            return body, data


def talk(
    port: int, *parts: bytes, wait: float = 5.0, answers: int = 1, half_close: bool = False, patience: float = 0.15
) -> Talk:
    """Send parts on a new connection; read until it is closed, or until `answers` arrived and no more follow."""
    with socket.create_connection((HOST, port), timeout=wait) as connection:
        data = b""
        # The server may refuse and close the connection before everything is sent.
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        while True:
            found, rest = read_answers(data)
            connection.settimeout(patience if len(found) >= answers and not rest else wait)
            try:
                received = connection.recv(1 << 18)
            except TimeoutError:
                return Talk(found, False, rest)
            except ConnectionError:
                return Talk(found, True, rest)
            if not received:
                return Talk(found, True, rest)
            data += received


@dataclass
class Crowd:
    """Several concurrent clients, each with a persistent connection."""

    port: int
    num_clients: int = 4
    local: threading.local = field(default_factory=threading.local)
    opened: list[http.client.HTTPConnection] = field(default_factory=list)

    def map(self, send: Callable[[T], Answer], cases: Iterable[T]) -> list[Answer]:
        """Send all cases; return the answers in the same order."""
        with ThreadPoolExecutor(self.num_clients) as pool:
            return list(pool.map(send, cases))

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """Send one well-formed request on the connection of this thread."""
        for attempt in (0, 1):
            connection = self.connect(anew=attempt > 0)
            try:
                connection.request(method, path, body, headers or {})
                response = connection.getresponse()
                found = {name.lower(): value for name, value in response.getheaders()}
                return Answer(response.status, found, response.read())
            except (ConnectionError, http.client.BadStatusLine):
                # The server closed the connection after the previous answer.
                connection.close()
        raise ConnectionError(f"{method} {path}: no answer on two connections")

    def connect(self, anew: bool) -> http.client.HTTPConnection:
        if anew or not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
            self.opened.append(self.local.connection)
        connection: http.client.HTTPConnection = self.local.connection
        return connection

    def close(self) -> None:
        """Close all connections; a client that continues opens a new one."""
        for connection in self.opened:
            connection.close()
