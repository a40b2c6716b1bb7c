"""Malformed pictures, bombs, forms and queries: the service reports the error or makes the picture; it never fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from tests.serving import strangers
from tests.serving.strangers import SOURCE, TARGET, Stranger, check_all, check_talks, peak_bytes
from tests.support.malformed_pictures import CLASSES
from tests.support.malformed_requests import FORM, FORM_CLASSES, Form, fuse_form, post, queries
from tests.support.picture_bombs import bombs
from tests.support.whole_pictures import odd_but_right

# Pytest finds the fixtures of a module by their names in it.
stranger = strangers.stranger
all_is_well_afterwards = strangers.all_is_well_afterwards

# `make test` sends every fourth case of a class, the slow tier all.
some_or_all = pytest.mark.parametrize(
    "step", [pytest.param(4, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow(seconds=3))]
)


@some_or_all
@pytest.mark.parametrize("made", CLASSES.values(), ids=CLASSES)
def test_malformed_pictures_are_refused_or_fused(
    stranger: Stranger, made: Callable[[], Iterator[bytes]], step: int
) -> None:
    # Decoded as sources that meet no target, and every fourth as a target, all the way to a picture.
    chosen = enumerate(islice(made(), 0, None, step))
    forms = [fuse_form(SOURCE, data) if n % 4 == 0 else fuse_form(data, b"x") for n, data in chosen]
    check_all(stranger.crowd.map(stranger.fuse, forms), [*forms])


def test_rare_but_valid_pictures_are_fused(stranger: Stranger) -> None:
    for data in odd_but_right():
        assert stranger.fuse(fuse_form(data, TARGET)).status == 200, data[:60]
        assert stranger.fuse(fuse_form(SOURCE, data)).status == 200, data[:60]


def test_bombs_are_refused_without_memory_and_without_time(stranger: Stranger) -> None:
    before = peak_bytes(stranger.replica)
    started = time.monotonic()
    forms = [form for data in bombs() for form in (fuse_form(data, b"x"), fuse_form(SOURCE, data))]
    said = stranger.crowd.map(stranger.fuse, forms)
    check_all(said, [*forms])
    assert sum(answer.status == 413 for answer in said) > 10
    assert peak_bytes(stranger.replica) - before < 64 * 2**20
    assert time.monotonic() - started < 20


@some_or_all
@pytest.mark.parametrize("path", ["/v1/fuse", "/v1/identities", "/v1/batches", "/v1/jobs"])
@pytest.mark.parametrize("made", FORM_CLASSES.values(), ids=FORM_CLASSES)
def test_malformed_forms_are_refused_or_understood(
    stranger: Stranger, made: Callable[[bytes, bytes], Iterator[Form]], path: str, step: int
) -> None:
    # Of what would start long work, the structure is bent, not the content.
    forms = list(islice(made(b"x" if path == "/v1/jobs" else SOURCE, b"x"), 0, None, step))
    said = stranger.crowd.map(lambda form: stranger.send(form, path), forms)
    check_all(said, [*forms])
    assert all("x-evil" not in answer.headers for answer in said)
    assert not any(b"root:" in answer.body for answer in said)


def test_malformed_queries_are_refused_or_understood(stranger: Stranger) -> None:
    body = fuse_form(SOURCE, b"x").body
    length = b"Content-Length: %d" % len(body)
    requests = [post(length, b"Content-Type: " + FORM, path=b"/v1/fuse?" + query, body=body) for query in queries()]
    check_talks(stranger, requests)
