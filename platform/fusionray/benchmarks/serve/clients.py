"""Clients that check their answers: status, pixels, retry time, and milliseconds by stage."""

from __future__ import annotations

import hashlib
import http.client
import re
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
    """One client with one connection, which it reopens if it was closed."""

    def __init__(self, host: str, port: int, path: str, body: Body) -> None:
        self.connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        self.path = path
        self.body = body

    def ask(self) -> ServerAnswer:
        """Send the request and wait for the answer."""
        began, started = time.time(), time.perf_counter()
        fault = LOST
        try:
            self.send()
            response = self.connection.getresponse()
            fault = FAILED
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            if isinstance(error, (TimeoutError, ConnectionRefusedError)):
                fault = FAILED
            return ServerAnswer(fault, {}, b"", began, time.perf_counter() - started)
        seconds = time.perf_counter() - started
        headers = {name.lower(): value for name, value in response.getheaders()}
        return ServerAnswer(response.status, headers, data, began, seconds)

    def send(self) -> None:
        """Send the request, and do not wait for the answer.

        Raises: OSError.
        """
        self.connection.request("POST", self.path, self.body.data, {"content-type": self.body.media_type})

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
        self.connection.close()


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
