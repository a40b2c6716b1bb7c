"""Where a service listens: with keys only beyond loopback, on the address that was asked for, and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fusionray.environment import HTTP_HOST_VARIABLE, KEY_VARIABLE, PRIVATE_CLUSTER_VARIABLE
from fusionray.errors import ConfigInvalid, ServiceFailed
from fusionray.serving.addresses import check_exposure, choose_serve_host, is_loopback, wait_until_reachable


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_beyond_loopback_a_key_is_required(host: str) -> None:
    with pytest.raises(ConfigInvalid, match=KEY_VARIABLE):
        check_exposure(host, False)
    check_exposure(host, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5"])
def test_in_a_private_cluster_only_haproxy_leaves_loopback(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv(PRIVATE_CLUSTER_VARIABLE, "1")
    monkeypatch.setenv(HTTP_HOST_VARIABLE, host)
    assert choose_serve_host(host, num_nodes=1) == "127.0.0.1"
    with pytest.raises(ConfigInvalid, match=f"started for {host}"):
        choose_serve_host("10.0.0.6", num_nodes=1)


def test_in_another_cluster_every_node_reaches_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PRIVATE_CLUSTER_VARIABLE, raising=False)
    assert choose_serve_host("0.0.0.0", num_nodes=3) == "0.0.0.0"
    assert choose_serve_host("127.0.0.1", num_nodes=1) == "127.0.0.1"
    for host, num_nodes in (("127.0.0.1", 2), ("10.0.0.5", 1)):
        with pytest.raises(ConfigInvalid, match=rf"{host}: .*use 0\.0\.0\.0"):
            choose_serve_host(host, num_nodes)


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


def test_a_start_waits_for_the_first_answer(late_server: HTTPServer) -> None:
    # Nothing listens on the first address.
    wait_until_reachable(["127.0.0.2", "127.0.0.1"], late_server.server_port, 10)
    assert late_server.RequestHandlerClass.asked == NOT_READY + 1  # type: ignore[attr-defined]


def test_a_service_that_never_answers_is_named(late_server: HTTPServer) -> None:
    with pytest.raises(ServiceFailed, match=r"http://127\.0\.0\.2:\d+/readyz does not answer"):
        wait_until_reachable(["127.0.0.2"], late_server.server_port, 0.1)
