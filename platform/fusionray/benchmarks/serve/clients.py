"""Clients that check their answers: status, pixels, retry time, and milliseconds by stage."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.benchmarks.serve.inputs import Body
from fusionray.benchmarks.serve.load import OK
from fusionray.faces.image_files.decode import decode_image

TIMEOUT_SECONDS = 120.0
# No answer came because the connection closed; or the service was not reached, took too long, or cut its answer off.
LOST, FAILED = -1, -2
UNAVAILABLE = 503
# Batches of different sizes add up in a different order, so single values may round differently; JPEG spreads that.
LARGEST_MEAN_DIFFERENCE = 0.5
END_OF_HEAD, LENGTH = b"\r\n\r\n", re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")
PIECE_BYTES = 2**18
STAGE = re.compile(r"([\w-]+);dur=([\d.]+)")


@dataclass(frozen=True)
class ServerAnswer:
    """An answer: status (below 0: no whole one), headers in lower case, body, start (seconds since 1970), seconds."""

    status: int
    headers: Mapping[str, str]
    data: bytes
    began: float
    seconds: float

    @property
    def stages_ms(self) -> dict[str, float]:
        """Return the milliseconds by stage that the service reports."""
        return parse_stages(self.headers.get("server-timing", ""))

    @property
    def retry_seconds(self) -> float:
        """Return the seconds after which the client may retry."""
        return float(self.headers.get("retry-after", "1"))


def parse_stages(header: str) -> dict[str, float]:
    """Read a Server-Timing header: milliseconds by stage."""
    return {name: float(milliseconds) for name, milliseconds in STAGE.findall(header)}


class Client:
    """One client with one connection, which it reopens if it was closed.

    A request leaves in one piece, and the time of an answer ends with its last byte, before the client reads what it
    says: with cold caches `http.client` takes 0.7 ms for its two pieces and its parser, which no server can help.
    """

    def __init__(self, host: str, port: int, path: str, body: Body) -> None:
        self.address = (host, port)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Content-Type: {body.media_type}\r\nContent-Length: {len(body.data)}\r\n\r\n"
        )
        self.request = head.encode() + body.data
        self.connection: socket.socket | None = None

    def ask(self) -> ServerAnswer:
        """Send the request and wait for the answer."""
        began, started = time.time(), time.perf_counter()
        received = bytearray()
        try:
            self.receive(self.send(), received)
        except OSError as error:
            self.close()
            is_lost = not received and not isinstance(error, (TimeoutError, ConnectionRefusedError))
            return ServerAnswer(LOST if is_lost else FAILED, {}, b"", began, time.perf_counter() - started)
        seconds = time.perf_counter() - started
        return self.read_answer(received, began, seconds)

    def send(self) -> socket.socket:
        """Send the request, and do not wait for the answer, which comes on the connection.

        Raises: OSError.
        """
        if self.connection is None:
            self.connection = socket.create_connection(self.address, TIMEOUT_SECONDS)
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.sendall(self.request)
        return self.connection

    def receive(self, connection: socket.socket, received: bytearray) -> None:
        """Receive the bytes of an answer of stated length.

        Raises: OSError; ConnectionError if the connection is closed before the last byte.
        """
        length: int | None = None
        while length is None or len(received) < length:
            piece = connection.recv(PIECE_BYTES)
            if not piece:
                raise ConnectionError("the connection was closed before the last byte of the answer")
            received += piece
            head = received.find(END_OF_HEAD) if length is None else -1
            if head >= 0:
                stated = LENGTH.search(received, 0, head + 2)
                length = head + len(END_OF_HEAD) + (int(stated[1]) if stated else 0)

    def read_answer(self, received: bytearray, began: float, seconds: float) -> ServerAnswer:
        head, _, data = bytes(received).partition(END_OF_HEAD)
        status, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        if headers.get("connection", "").lower() == "close":
            self.close()
        return ServerAnswer(int(status.split()[1]), headers, data, began, seconds)

    def ask_with_retry(self) -> list[ServerAnswer]:
        """Ask, and once more after a 503, or if the connection closed without an answer, as our own client does.

        A repeated fusion is safe, because it changes nothing.
        """
        first = self.ask()
        if first.status not in (UNAVAILABLE, LOST):
            return [first]
        if first.status == UNAVAILABLE:
            time.sleep(first.retry_seconds)
        return [first, self.ask()]

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Checker:
    """Check answers: by known bytes, or against the pixels that the runtime computes itself."""

    def __init__(self, expected: NDArray[np.uint8]) -> None:
        self.expected = expected.astype(np.float32)
        self.known: dict[bytes, bool] = {}
        self.lock = threading.Lock()

    def is_right(self, answer: ServerAnswer) -> bool:
        """Tell whether an answer is the right picture; a refusal is not."""
        if answer.status != OK:
            return False
        digest = hashlib.sha256(answer.data).digest()
        with self.lock:
            if digest not in self.known:
                self.known[digest] = self.compare(answer.data)
            return self.known[digest]

    def compare(self, data: bytes) -> bool:
        return self.difference(data) <= LARGEST_MEAN_DIFFERENCE

    def is_near(self, answer: ServerAnswer, target: bytes) -> bool:
        """Tell whether an answer is nearer to the right picture than the target is: other code cuts faces a part of a
        pixel elsewhere.
        """
        return answer.status == OK and self.difference(answer.data) < self.difference(target)

    def difference(self, data: bytes) -> float:
        """Return the mean difference of a picture from the right one, of 255; infinite if it has another size."""
        found = decode_image(data).astype(np.float32)
        if found.shape != self.expected.shape:
            return float("inf")
        return float(np.abs(found - self.expected).mean())
