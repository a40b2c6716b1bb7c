"""Webhooks of several replicas that share a store, to a real server."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection

import pytest

from fusionray.errors import ConfigInvalid
from fusionray.serving.config_sections.jobs import WebhookConfig
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.post import post
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.jobs.webhooks import WebhookSender, WebhookStatus, parse_secret
from tests.support.waiting import wait_for


@dataclass
class Receiver:
    """A server that answers with `status`."""

    status: int = 204
    messages: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    place = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            place.messages.append(self.headers["webhook-id"])
            self.send_response(place.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    place.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield place
    server.shutdown()
    thread.join()
    server.server_close()


def end_job(store: JobStore, url: str) -> str:
    job = store.create("ann", NewJob({}, b"source", [b"target"], webhook=url, host="there")).status.job
    store.cancel(job, "ann")
    return job


def tell(store: JobStore, job: str, num_replicas: int = 1) -> WebhookStatus:
    """Send the webhook of a job until it is delivered or given up."""
    settings = WebhookConfig(max_attempts=3, first_retry_seconds=0.01, timeout_seconds=2.0)
    senders = [
        WebhookSender(
            store.list_ended, lambda _: {"status": "cancelled", "ended_at": "now"}, store.key, settings, b"secret"
        )
        for _ in range(num_replicas)
    ]
    for sender in senders:
        sender.start()
    try:
        wait_for(lambda: look(store, job).state != "waiting")
    finally:
        for sender in senders:
            sender.drain()
    return look(store, job)


def look(store: JobStore, job: str) -> WebhookStatus:
    webhook = store.status(job, "ann").webhook
    assert webhook is not None
    return webhook


def test_of_several_replicas_one_tells_the_end(store: JobStore, receiver: Receiver) -> None:
    jobs = [end_job(store, receiver.url) for _ in range(5)]
    assert tell(store, jobs[-1], num_replicas=3).state == "delivered"
    for job in jobs:
        assert tell(store, job).state == "delivered"
    assert sorted(receiver.messages) == sorted(f"msg_{job}" for job in jobs)


@pytest.mark.parametrize(("status", "num_attempts"), [(500, 3), (302, 3), (410, 1)])
def test_a_server_that_refuses_is_given_up(store: JobStore, receiver: Receiver, status: int, num_attempts: int) -> None:
    receiver.status = status
    told = tell(store, end_job(store, receiver.url))
    assert (told.state, [made.status for made in told.attempts]) == ("failed", [status] * num_attempts)
    assert len(receiver.messages) == num_attempts


def test_a_server_that_does_not_answer_is_named_by_the_kind_of_error(store: JobStore) -> None:
    told = tell(store, end_job(store, "http://127.0.0.1:1/secret"))
    assert [(made.status, made.error) for made in told.attempts] == [(None, "ConnectionRefusedError")] * 3


@pytest.mark.parametrize("text", [None, "", "whsec_", "whsec_c2hvcnQ=", "c" * 64, "whsec_" + "!" * 40])
def test_a_secret_that_is_none_is_refused_and_not_repeated(text: str | None) -> None:
    with pytest.raises(ConfigInvalid, match="FUSIONRAY_WEBHOOK_SECRET") as caught:
        parse_secret(text)
    assert not text or len(text) < 10 or text not in str(caught.value)


def test_a_host_that_is_slow_to_connect_gets_nothing(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = HTTPConnection.connect

    def connect_late(connection: HTTPConnection) -> None:
        time.sleep(0.5)
        connect(connection)

    monkeypatch.setattr(HTTPConnection, "connect", connect_late)
    with pytest.raises(TimeoutError, match="connecting took too long"):
        post(receiver.url, b"{}", {}, 0.1)
    assert receiver.messages == []
