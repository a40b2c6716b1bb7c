"""Clients that send malformed requests over real sockets through HAProxy into one replica, the same at the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fusionray.faces.image_files.decode import decode_image
from tests.support.malformed_requests import FORM, Form, fuse_form
from tests.support.pictures import Picture, draw_person
from tests.support.serving import OpenService, encode
from tests.support.wire import Answer, Crowd, Talk, talk

SOURCE, TARGET = encode(draw_person(1, 160)), encode(draw_person(2, 160))
GOOD = fuse_form(SOURCE, TARGET)
HEADERS = {"Content-Type": FORM.decode()}
ALLOWED = {200, 201, 202, 204, 304, 400, 401, 403, 404, 405, 408, 413, 415, 422, 503}
# Only where jobs and identities are taken: each client may have some jobs that are not finished, and stores are finite.
FULL = {429: b"open_jobs", 507: b"store_full"}
# What HAProxy's HTTP parser refuses has no configurable page; it closes the connection behind it.
PARSER_PAGE = re.compile(rb"<html><body><h1>4\d\d [A-Za-z -]+</h1>\n[^<]+\n</body></html>\n")


@dataclass(frozen=True)
class Stranger:
    """The service under test, and its initial state."""

    crowd: Crowd
    replica: int
    expected: Picture

    @property
    def port(self) -> int:
        return self.crowd.port

    def send(self, form: Form, path: str) -> Answer:
        headers = {"Content-Type": form.content_type.decode("latin-1")} if form.content_type else {}
        return self.crowd.ask("POST", path, form.body, headers)

    def fuse(self, form: Form) -> Answer:
        return self.send(form, "/v1/fuse")

    def fuse_right(self) -> bool:
        answer = self.fuse(GOOD)
        return answer.status == 200 and np.array_equal(decode_image(answer.body), self.expected)


def find_replicas() -> list[int]:
    """List the processes of replicas that this test's Ray runs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().startswith(b"ray::ServeReplica:fusionray:") and is_ours(
                int(entry.name)
            ):
                found.append(int(entry.name))
    return found


def is_ours(process: int) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def peak_bytes(process: int) -> int:
    """Read the most memory that a process ever held (VmHWM)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def open_temporary_files(process: int) -> set[str]:
    """List the files in the temporary folder that a process holds open, deleted ones among them."""
    found = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(entry)
            if target.startswith((f"{tempfile.gettempdir()}/#", f"{tempfile.gettempdir()}/tmp")):
                found.add(target)
    return found


@pytest.fixture(scope="module")
def stranger(open_service: OpenService) -> Stranger:
    crowd = Crowd(open_service.port)
    answer = crowd.ask("POST", "/v1/fuse", GOOD.body, HEADERS)
    assert answer.status == 200, answer
    (replica,) = find_replicas()
    return Stranger(crowd, replica, decode_image(answer.body))


@pytest.fixture(autouse=True)
def all_is_well_afterwards(stranger: Stranger) -> Iterator[None]:
    """After each class of cases: the right picture, the same process, no file left behind."""
    yield
    assert stranger.fuse_right()
    stranger.crowd.close()
    assert find_replicas() == [stranger.replica]
    deadline = time.monotonic() + 5
    while open_temporary_files(stranger.replica) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not open_temporary_files(stranger.replica)


def check(answer: Answer, case: object) -> None:
    """Check that an answer is a good one, or a problem document that says so itself."""
    about = f"{answer.status} {answer.body[:300]!r} to {str(case)[:400]}"
    assert answer.status in ALLOWED or (answer.status in FULL and FULL[answer.status] in answer.body), about
    if answer.status < 400 or PARSER_PAGE.fullmatch(answer.body):
        return
    assert answer.headers.get("content-type") == "application/problem+json", about
    if answer.body:
        document = json.loads(answer.body)
        assert document["status"] == answer.status, about
        assert document["type"] == f"urn:fusionray:problem:{document['reason']}", about
        assert document["title"], about
        assert document["detail"], about
    assert answer.status < 503 or int(answer.headers["retry-after"]) > 0, about


def check_all(said: list[Answer], cases: list[object]) -> None:
    assert len(said) == len(cases) > 0
    for answer, case in zip(said, cases, strict=True):
        check(answer, case)
        # One client at a time a thread: there is room for all.
        assert answer.status != 503, answer


def check_talks(stranger: Stranger, requests: list[bytes], *, silence: bool = False) -> list[Talk]:
    """Send each on a connection of its own, and check what comes back."""
    # Where an answer must come, a busy machine may take its time.
    wait = 3 if silence else 20
    with ThreadPoolExecutor(6) as pool:
        talks = list(pool.map(lambda request: talk(stranger.port, request, patience=0.02, wait=wait), requests))
    for said, request in zip(talks, requests, strict=True):
        assert not said.rest, (said.rest[:200], request[:200])
        assert said.answers or said.closed or silence, request[:200]
        for answer in said.answers:
            check(answer, request[:300])
    return talks
