"""A service counts as started once it answers at its address, not when its replicas run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fusionray.serving.application import wait_until_reachable

NOT_READY = 3


@pytest.fixture
def late_server() -> Iterator[HTTPServer]:
    """A server that answers 503 at first, as HAProxy does until it knows a replica."""

    class Handler(BaseHTTPRequestHandler):
        asked = 0

        def do_GET(self) -> None:
            type(self).asked += 1
            self.send_response(503 if self.asked <= NOT_READY or self.path != "/readyz" else 200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_start_waits_for_the_first_answer(late_server: HTTPServer, host: str) -> None:
    wait_until_reachable(host, late_server.server_port, time.monotonic() + 10)
    assert late_server.RequestHandlerClass.asked == NOT_READY + 1  # type: ignore[attr-defined]
