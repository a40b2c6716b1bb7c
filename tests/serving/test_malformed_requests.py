"""Malformed HTTP, smuggled, slow and broken off requests: the service answers or lets go; it never fails or dies."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fusionray.serving.haproxy import ARRIVAL_SECONDS
from tests.serving import strangers
from tests.serving.strangers import GOOD, Stranger, check, check_talks
from tests.support.malformed_requests import FOLLOW, FORM, ambiguous, get, handles, heads, no_http, post
from tests.support.serving import MAX_BODY_BYTES
from tests.support.wire import HOST, Answer, Talk, read_answers, talk

# Pytest finds the fixtures of a module by their names in it.
stranger = strangers.stranger
all_is_well_afterwards = strangers.all_is_well_afterwards


def test_malformed_handles_are_unknown(stranger: Stranger) -> None:
    for said in check_talks(stranger, list(handles())):
        assert all(answer.status in (400, 404, 405, 422) for answer in said.answers)


def test_malformed_heads_are_refused_or_understood(stranger: Stranger) -> None:
    requests = list(heads())
    talks = check_talks(stranger, requests)
    for said in talks:
        for answer in said.answers:
            assert answer.status != 408
            assert "location" not in answer.headers
            assert "x-evil" not in answer.headers
            assert b"root:" not in answer.body


def test_bytes_that_are_not_http_are_refused_or_time_out(stranger: Stranger) -> None:
    # Some of it may still become a request: its sender is let go by the time limit on heads.
    check_talks(stranger, list(no_http()), silence=True)


def test_an_ambiguous_end_of_a_request_smuggles_nothing(stranger: Stranger) -> None:
    stop = threading.Event()
    mixed_up: list[Answer] = []

    def ask_beside() -> None:
        # Connections to the replica are shared: an answer to a smuggled request would reach somebody else.
        while not stop.is_set():
            for path, sign in (("/healthz", b'"ok"'), ("/v1/models", b'"models"')):
                answer = stranger.crowd.ask("GET", path)
                if sign not in answer.body:
                    mixed_up.append(answer)

    beside = threading.Thread(target=ask_beside)
    beside.start()
    try:
        requests = list(ambiguous())
        with ThreadPoolExecutor(6) as pool:
            talks = list(pool.map(lambda request: talk(stranger.port, request + FOLLOW, answers=2, wait=0.6), requests))
    finally:
        stop.set()
        beside.join()
    assert not mixed_up
    for said, request in zip(talks, requests, strict=True):
        for answer in said.answers:
            check(answer, request[:300])
        # /smuggled stands inside of a body, or behind a request that was refused; only behind a body that is rightly
        # empty is it a request of this very client's.
        if len(said.answers) > 1 and said.answers[1].status == 404:
            assert ends_before_smuggled(request), request


def ends_before_smuggled(request: bytes) -> bool:
    """Tell whether a request by the book ends before the words that may be taken for another one."""
    head, _, body = request.partition(b"\r\n\r\n")
    if re.search(rb"(?im)^transfer-encoding:", head):
        return b"chunked" in head.lower() and not body.startswith(b"5c")
    found = re.search(rb"(?im)^content-length:[ \t]*(\d+)", head)
    return found is None or int(found[1]) == 0 or body[int(found[1]) :].startswith(b"GET /smuggled")


def test_pipelined_requests_are_answered_in_their_order(stranger: Stranger) -> None:
    paths = [b"/healthz", b"/v1/models", b"/nowhere", b"/healthz", b"/v1/fuse"] * 20
    said = talk(stranger.port, b"".join(get(path) for path in paths), answers=len(paths))
    assert [answer.status for answer in said.answers] == [200, 200, 404, 200, 405] * 20
    assert [stranger.crowd.ask(verb, "/healthz").status for verb in ("HEAD", "GET") * 5] == [405, 200] * 5


def test_a_body_that_is_too_long_is_never_read_as_a_request(stranger: Stranger) -> None:
    for length in (MAX_BODY_BYTES + 1, 2**33):
        said = talk(stranger.port, post(b"Content-Length: %d" % length), get(b"/smuggled") * 100, answers=2, wait=1.0)
        assert [answer.status for answer in said.answers] == [413]


def test_half_closed_connections_are_answered_or_closed(stranger: Stranger) -> None:
    whole = post(b"Content-Length: %d" % len(GOOD.body), b"Content-Type: " + FORM, body=GOOD.body)
    for cut in (3, 30, 90, 400, len(whole) - 1, len(whole)):
        said = talk(stranger.port, whole[:cut], half_close=True)
        assert said.closed
        for answer in said.answers:
            check(answer, cut)


def test_clients_that_disconnect_cost_nothing(stranger: Stranger) -> None:
    whole = post(b"Content-Length: %d" % len(GOOD.body), b"Content-Type: " + FORM, body=GOOD.body)
    abort = struct.pack("ii", 1, 0)

    def leave(number: int) -> None:
        with socket.create_connection((HOST, stranger.port), timeout=10) as connection:
            if number % 2:
                # Closed with a reset, not in order.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, abort)
            connection.sendall(whole[: len(whole) * (number % 5) // 4])
            if number % 5 == 4 and number % 3:
                connection.recv(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(leave, range(150)))
    # Nothing of it keeps a place: as many as may come in at once are answered.
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda _: stranger.fuse_right(), range(32)))


def send_slowly(port: int, front: bytes, rest: bytes, seconds: float, give_up: float) -> Talk:
    """Send the front at once and the rest byte by byte, until there is an answer or the connection is closed."""
    started = time.monotonic()
    data, closed = b"", False
    with socket.create_connection((HOST, port), timeout=5) as connection:
        connection.sendall(front)
        connection.settimeout(seconds)
        for byte in rest:
            if closed or read_answers(data)[0] or time.monotonic() - started > give_up:
                break
            with contextlib.suppress(TimeoutError):
                try:
                    connection.sendall(bytes([byte]))
                    received = connection.recv(65_536)
                except ConnectionError:
                    received = b""
                data, closed = data + received, not received
    return Talk(read_answers(data)[0], closed)


@pytest.mark.slow(seconds=15)
def test_slow_clients_time_out_and_others_are_served_meanwhile(stranger: Stranger) -> None:
    slow_body = post(b"Content-Length: 3000", b"Content-Type: " + FORM)
    # What says that it does not fit HAProxy's buffer takes up a place in the service while it arrives.
    long_body = post(b"Content-Length: %d" % (MAX_BODY_BYTES - 1), b"Content-Type: " + FORM)
    limit = ARRIVAL_SECONDS + 5
    idle = [socket.create_connection((HOST, stranger.port), timeout=5) for _ in range(400)]
    with ThreadPoolExecutor(24) as pool:
        started = time.monotonic()
        by_head = [pool.submit(send_slowly, stranger.port, b"", get(), 0.7, limit) for _ in range(8)]
        by_line = [
            pool.submit(send_slowly, stranger.port, get()[:-2] + b"X: ", b"a" * 99, 0.7, limit) for _ in range(4)
        ]
        by_body = [pool.submit(send_slowly, stranger.port, slow_body, GOOD.body, 0.1, limit) for _ in range(4)]
        by_long_body = [pool.submit(send_slowly, stranger.port, long_body, GOOD.body, 0.1, limit) for _ in range(8)]
        waits = []
        while not all(sender.done() for sender in by_long_body):
            before = time.monotonic()
            assert stranger.fuse_right()
            waits.append(time.monotonic() - before)
        assert time.monotonic() - started < ARRIVAL_SECONDS  # the service ended them, before HAProxy would have
        assert max(waits) < ARRIVAL_SECONDS / 3
        for sender in (*by_body, *by_long_body):
            (answer,) = sender.result().answers
            check(answer, "slow body")
            assert (answer.status, answer.reason) == (408, "too_slow")
        assert stranger.fuse_right()
        for sender in (*by_head, *by_line):
            said = sender.result()
            assert said.closed or [answer.status for answer in said.answers] == [408]
        assert ARRIVAL_SECONDS - 2 < time.monotonic() - started < limit
    for connection in idle:
        connection.close()
