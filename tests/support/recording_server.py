"""A server on a free port of this machine that records requests, and answers as a test says."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fusionray.serving.problem_document import problem_document
from fusionray.serving.schema import PROBLEM_TYPE


@dataclass(frozen=True)
class Answer:
    """An answer: its body is JSON unless it is bytes."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


REFUSAL = Answer(
    418, problem_document(418, "teapot", "Refused", "nothing is made here"), {"content-type": PROBLEM_TYPE}
)
# The connection closes in its place.
NO_ANSWER = Answer(0, b"")


@dataclass(frozen=True)
class Part:
    """A field of a form; texts have no file name."""

    name: str
    filename: str | None
    data: bytes


@dataclass(frozen=True)
class Recorded:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    def read_form(self) -> list[Part]:
        """Read the fields of a form."""
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        parsed = BytesParser(policy=HTTP).parsebytes(head + self.body)
        return [
            Part(
                str(part.get_param("name", header="content-disposition")),
                part.get_filename(),
                part.get_payload(decode=True),  # type: ignore[arg-type]
            )
            for part in parsed.iter_parts()  # type: ignore[attr-defined]
        ]


@dataclass
class RecordingServer:
    """What arrived, and the answers of the next requests; after them every request is refused."""

    url: str = ""
    requests: list[Recorded] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def answer(self, request: Recorded) -> Answer:
        self.requests.append(request)
        return self.answers.pop(0) if self.answers else REFUSAL


@contextmanager
def record_requests() -> Iterator[RecordingServer]:
    """Start the server, and stop it at the end."""
    recording = RecordingServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            address = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = recording.answer(Recorded(self.command, address.path, parse_qs(address.query), headers, body))
            if answer is NO_ANSWER:
                self.close_connection = True
                return
            data = answer.encode()
            stated = {"content-type": "application/json", "content-length": str(len(data)), **answer.headers}
            self.send_response(answer.status)
            for name, value in stated.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
            # An answer that is shorter than it says breaks off.
            self.close_connection = int(stated["content-length"]) > len(data)

        do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server has it so

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            del format, arguments

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        recording.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield recording
        finally:
            server.shutdown()
            thread.join()
