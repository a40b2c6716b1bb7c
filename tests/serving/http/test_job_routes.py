"""Jobs over HTTP: the real service behind HAProxy."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import io
import json
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from fusionray.faces.image_files.decode import decode_image
from tests.serving.strangers import find_replicas, peak_bytes
from tests.support.pictures import draw_empty, draw_person
from tests.support.serving import MAX_BODY_BYTES, MAX_JOB_BODY_BYTES, WEBHOOK_HOST, WEBHOOK_SECRET, OpenService, encode
from tests.support.waiting import wait_for

SOURCE, TARGET, EMPTY = encode(draw_person(1)), encode(draw_person(2)), encode(draw_empty())
# Enough pictures that the job does not end while a test looks at it.
MANY = 600
EVENT_SECONDS = 30.0


@pytest.fixture
def client(open_service: OpenService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=open_service.url, timeout=60) as opened:
        # Other modules leave jobs behind.
        remove_jobs(opened)
        yield opened
        remove_jobs(opened)


def remove_jobs(client: httpx.Client) -> None:
    while jobs := client.get("/v1/jobs", params={"limit": 200}).json()["jobs"]:
        for job in jobs:
            client.delete(f"/v1/jobs/{job['job']}")


def start(client: httpx.Client, *targets: bytes, headers: dict[str, str] | None = None, **form: Any) -> httpx.Response:
    files = [("source", SOURCE)] if "source_uri" not in form else []
    files += [("target", target) for target in targets]
    return client.post("/v1/jobs", files=[(name, ("a", data)) for name, data in files], data=form, headers=headers)


def start_one(client: httpx.Client, *targets: bytes, **form: Any) -> str:
    started = start(client, *targets, **form)
    assert started.status_code == 202, started.text
    assert started.headers["location"] == f"/v1/jobs/{started.json()['job']}"
    job: str = started.json()["job"]
    return job


def wait_for_end(client: httpx.Client, job: str) -> dict[str, Any]:
    wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["ended_at"])
    document: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
    return document


def reason_of(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["reason"]


def test_jobs_are_listed_the_newest_first_in_pages(client: httpx.Client) -> None:
    jobs = [start_one(client, b"no picture") for _ in range(5)]
    for job in jobs:
        wait_for_end(client, job)
    seen, cursor, pages = [], {}, 0
    while True:
        page = client.get("/v1/jobs", params={"limit": 2, **cursor}).json()
        seen += [each["job"] for each in page["jobs"]]
        pages += 1
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert (seen, pages) == (jobs[::-1], 3)
    open_job = start_one(client, *[TARGET] * MANY)
    assert [each["job"] for each in client.get("/v1/jobs?status=done").json()["jobs"]] == jobs[::-1]
    assert client.post(f"/v1/jobs/{open_job}/cancel").status_code == 200
    assert [each["job"] for each in client.get("/v1/jobs?status=cancelled").json()["jobs"]] == [open_job]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "status=lost", "cursor=x", "cursor=W10", "cursor=%ff"]
)
def test_a_page_that_does_not_exist_is_422(client: httpx.Client, query: str) -> None:
    assert reason_of(client.get(f"/v1/jobs?{query}")) == (422, "bad_fields")


def test_a_cancelled_job_keeps_its_finished_pictures(client: httpx.Client) -> None:
    job = start_one(client, *[TARGET] * MANY)
    wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["done"] >= 2)
    # Of the pictures that are made at once, the first may come last.
    wait_for(lambda: client.get(f"/v1/jobs/{job}/items/1").status_code == 200)
    first = client.get(f"/v1/jobs/{job}/items/1")
    assert first.status_code == 200
    assert first.headers["content-type"] == "image/jpeg"
    assert decode_image(first.content).shape == (192, 192, 3)
    assert client.get(f"/v1/jobs/{job}").json()["status"] == "running"
    for _ in range(2):
        cancelled = client.post(f"/v1/jobs/{job}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert 2 <= cancelled.json()["done"] < MANY
    assert client.get(f"/v1/jobs/{job}/items/1").content == first.content
    assert reason_of(client.get(f"/v1/jobs/{job}/items/{MANY}")) == (409, "not_finished")
    items = client.get(f"/v1/jobs/{job}/items?limit=200").json()["items"]
    assert (items[0]["status"], items[-1]["status"]) == ("done", "cancelled")
    assert client.delete(f"/v1/jobs/{job}").status_code == 204
    assert reason_of(client.post(f"/v1/jobs/{job}/cancel")) == (404, "unknown_job")


def test_items_are_told_one_by_one_before_and_after_the_end(client: httpx.Client) -> None:
    job = start_one(client, TARGET, EMPTY, TARGET)
    assert wait_for_end(client, job)["status"] == "done"
    assert reason_of(client.post(f"/v1/jobs/{job}/cancel")) == (409, "already_ended")
    page = client.get(f"/v1/jobs/{job}/items?limit=2").json()
    rest = client.get(f"/v1/jobs/{job}/items", params={"cursor": page["next"]}).json()
    assert rest["next"] is None
    made, failed, last = [*page["items"], *rest["items"]]
    assert (made["index"], made["status"], made["model"], len(made["boxes"])) == (1, "done", "tiny", 1)
    assert "problem" not in made
    assert (failed["index"], failed["status"], failed["problem"]["reason"]) == (2, "failed", "no_face")
    assert last["index"] == 3
    with zipfile.ZipFile(io.BytesIO(client.get(f"/v1/jobs/{job}/result").content)) as archive:
        assert client.get(f"/v1/jobs/{job}/items/1").content == archive.read("0001.jpg")
    assert reason_of(client.get(f"/v1/jobs/{job}/items/2")) == (409, "item_failed")
    assert reason_of(client.get(f"/v1/jobs/{job}/items/4")) == (404, "unknown_item")
    assert reason_of(client.get(f"/v1/jobs/{job}/items/x")) == (422, "bad_fields")


def test_the_same_key_gives_the_same_job(client: httpx.Client) -> None:
    key = {"Idempotency-Key": '"8e03978e-40d5"'}
    with ThreadPoolExecutor(6) as pool:
        started = list(pool.map(lambda _: start(client, TARGET, headers=key), range(6)))
    assert {each.status_code for each in started} == {202}
    (job,) = {each.json()["job"] for each in started}
    assert [each["job"] for each in client.get("/v1/jobs").json()["jobs"]] == [job]
    wait_for_end(client, job)
    assert start(client, TARGET, headers=key).json()["status"] == "done"
    assert reason_of(start(client, EMPTY, headers=key)) == (422, "idempotency_key_reused")
    assert reason_of(start(client, TARGET, headers=key, faces="all")) == (422, "idempotency_key_reused")
    assert start_one(client, TARGET) != job
    client.delete(f"/v1/jobs/{job}")
    again = start(client, EMPTY, headers=key)
    assert (again.status_code, again.json()["done"]) == (202, 0)
    assert wait_for_end(client, again.json()["job"])["failed"] == 1


@pytest.mark.parametrize("key", ["", '"', '""', '"a', "a b", f'"{"a" * 256}"', '"a\\b"'])
def test_a_malformed_key_is_400(client: httpx.Client, key: str) -> None:
    assert reason_of(start(client, TARGET, headers={"Idempotency-Key": key})) == (400, "bad_request")


def test_uploads_of_jobs_have_their_own_limit_and_need_no_memory(
    client: httpx.Client, open_service: OpenService
) -> None:
    (replica,) = find_replicas()
    picture = bytes(MAX_BODY_BYTES - 1000)
    num_pictures = MAX_JOB_BODY_BYTES // MAX_BODY_BYTES - 1
    start_one(client, *[picture] * 2)
    # The peak begins anew (proc(5)).
    Path(f"/proc/{replica}/clear_refs").write_text("5")
    before = peak_bytes(replica)
    job = start_one(client, *[picture] * num_pictures)
    assert peak_bytes(replica) - before < num_pictures * len(picture) / 3
    assert client.get(f"/v1/jobs/{job}").json()["total"] == num_pictures
    assert reason_of(start(client, *[picture] * (num_pictures + 2))) == (413, "too_large")
    assert reason_of(start(client, bytes(MAX_BODY_BYTES + 1))) == (413, "too_large")
    tmp = open_service.folder / "runs" / "jobs" / "tmp"
    wait_for(lambda: list(tmp.iterdir()) == [])


def read_events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_events_tell_each_change_until_the_end(client: httpx.Client) -> None:
    job = start_one(client, *[TARGET] * 40)
    with client.stream("GET", f"/v1/jobs/{job}/events", timeout=EVENT_SECONDS) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = list(read_events(stream.iter_lines()))
    assert len(events) >= 2
    assert {name for name, _ in events[:-1]} == {"progress"}
    assert events[-1] == ("end", client.get(f"/v1/jobs/{job}").json())
    done = [data["done"] for _, data in events]
    assert done == sorted(done)
    assert reason_of(client.get("/v1/jobs/job_0/events")) == (404, "unknown_job")


def test_streams_have_a_limit_and_a_client_that_leaves_frees_its_place(client: httpx.Client) -> None:
    job = start_one(client, *[TARGET] * MANY)
    path = f"/v1/jobs/{job}/events"
    with client.stream("GET", path) as first, client.stream("GET", path) as second:
        # A generator that is dropped would close its stream.
        followed = [read_events(stream.iter_lines()) for stream in (first, second)]
        assert [next(events)[1]["job"] for events in followed] == [job, job]
        assert reason_of(client.get(path)) == (503, "busy")
        assert client.get("/v1/models").status_code == 200
    began = time.monotonic()

    def is_free() -> bool:
        with client.stream("GET", path) as stream:
            return stream.status_code == 200

    wait_for(is_free, 10)
    assert time.monotonic() - began < 5
    with client.stream("GET", path) as stream:
        events = read_events(stream.iter_lines())
        next(events)
        client.delete(f"/v1/jobs/{job}")
        assert list(events)[-1] == ("removed", {"job": job})


@pytest.fixture
def folder(open_service: OpenService) -> Iterator[Path]:
    """The folder from which jobs may read."""
    place = open_service.folder / "in"
    place.mkdir(exist_ok=True)
    yield place
    for path in place.iterdir():
        path.unlink()


def test_pictures_are_read_by_uri(client: httpx.Client, folder: Path, tmp_path: Path) -> None:
    (folder / "source.jpg").write_bytes(SOURCE)
    (folder / "a b.jpg").write_bytes(TARGET)
    (folder / "large.jpg").write_bytes(bytes(MAX_BODY_BYTES + 1))
    (folder / "inside.jpg").symlink_to(folder / "a b.jpg")
    (tmp_path / "secret.jpg").write_bytes(TARGET)
    (folder / "outside.jpg").symlink_to(tmp_path / "secret.jpg")
    names = ("a b.jpg", "inside.jpg", "outside.jpg", "large.jpg", "missing.jpg")
    uris = [(folder / name).as_uri() for name in names]
    job = start_one(client, TARGET, source_uri=(folder / "source.jpg").as_uri(), target_uri=uris)
    assert wait_for_end(client, job)["total"] == 6
    items = client.get(f"/v1/jobs/{job}/items").json()["items"]
    assert [item["status"] for item in items] == ["done", "done", "done", "failed", "failed", "failed"]
    assert [item["problem"]["reason"] for item in items[3:]] == ["uri_missing", "too_large", "uri_missing"]
    second, third = (decode_image(client.get(f"/v1/jobs/{job}/items/{number}").content) for number in (2, 3))
    assert (second == third).all()


@pytest.mark.parametrize(
    ("uri", "refusal"),
    [
        ("file:///etc/passwd", (403, "uri_not_allowed")),
        ("s3://bucket/a.jpg", (403, "uri_not_allowed")),
        ("IN/../../etc/passwd", (422, "bad_uri")),
        ("IN/%2e%2e/a.jpg", (422, "bad_uri")),
        ("IN/..%2fa.jpg", (422, "bad_uri")),
        ("IN/a.jpg?region=x", (422, "bad_uri")),
        ("file://user:word@host/a.jpg", (422, "bad_uri")),
        ("/etc/passwd", (422, "bad_uri")),
        ("IN/", (422, "bad_uri")),
    ],
)
def test_other_uris_are_refused(client: httpx.Client, folder: Path, uri: str, refusal: tuple[int, str]) -> None:
    assert reason_of(start(client, target_uri=[uri.replace("IN", folder.as_uri())])) == refusal


class Receiver:
    """A server that refuses two messages, then accepts."""

    def __init__(self) -> None:
        self.messages: list[tuple[dict[str, str], bytes]] = []
        received = self.messages

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status = {1: 500, 2: 302}.get(len(received), 204)
                self.send_response(status)
                self.send_header("Location", f"http://{WEBHOOK_HOST}/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        host, _, port = WEBHOOK_HOST.partition(":")
        self.server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> Receiver:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def test_a_webhook_is_signed_and_tried_until_it_is_accepted(client: httpx.Client) -> None:
    with Receiver() as receiver:
        job = start_one(client, TARGET, webhook=f"http://{WEBHOOK_HOST}/hook?token=secret")
        assert client.get(f"/v1/jobs/{job}").json()["webhook"] == {
            "host": WEBHOOK_HOST,
            "state": "waiting",
            "attempts": [],
        }
        wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["webhook"]["state"] != "waiting")
    told = client.get(f"/v1/jobs/{job}").json()
    assert told["webhook"]["state"] == "delivered"
    assert [made["status"] for made in told["webhook"]["attempts"]] == [500, 302, 204]
    assert len({headers["webhook-id"] for headers, _ in receiver.messages}) == 1
    for headers, body in receiver.messages:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        secret = base64.b64decode(WEBHOOK_SECRET.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        assert abs(time.time() - int(headers["webhook-timestamp"])) < 60
        document = json.loads(body)
        assert document["type"] == "job.done"
        assert document["data"] == {name: value for name, value in told.items() if name != "webhook"}


@pytest.mark.parametrize(
    ("url", "refusal"),
    [
        ("https://example.org/hook", (403, "webhook_not_allowed")),
        ("http://127.0.0.1:1/", (403, "webhook_not_allowed")),
        (f"http://user:word@{WEBHOOK_HOST}/", (422, "bad_webhook")),
        ("ftp://example.org/", (422, "bad_webhook")),
        ("https://exam ple.org/", (422, "bad_webhook")),
        ("https://", (422, "bad_webhook")),
    ],
)
def test_other_webhooks_are_refused(client: httpx.Client, url: str, refusal: tuple[int, str]) -> None:
    assert reason_of(start(client, TARGET, webhook=url)) == refusal


def test_secrets_of_open_jobs_are_encrypted(client: httpx.Client, open_service: OpenService) -> None:
    kept = client.post("/v1/identities", files={"source": SOURCE}).json()["identity"]
    files = [("target", ("a", TARGET))] * MANY
    form = {
        "identity": kept,
        "consent": "a-token-of-consent",
        "webhook": f"http://{WEBHOOK_HOST}/hook?token=of-address",
    }
    job = client.post("/v1/jobs", files=files, data=form).json()["job"]
    folder = open_service.folder / "runs" / "jobs" / "jobs" / job
    found = {}
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        # Results get their names when they are whole, maybe now.
        with suppress(FileNotFoundError):
            found[path] = path.read_bytes()
    assert folder / "secrets" in found
    for path, data in found.items():
        assert not any(secret in data for secret in (kept.encode(), b"token-of-consent", b"of-address")), path
    key_file = open_service.folder / "runs" / "jobs.key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    wait_for(lambda: client.get(f"/v1/jobs/{job}").json()["done"] > 0)


def test_every_route_of_jobs_is_described(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    for path in ("", "/{job}", "/{job}/items", "/{job}/cancel"):
        for operation in document["paths"][f"/v1/jobs{path}"].values():
            status = next(status for status in operation["responses"] if status.startswith("2"))
            content = operation["responses"][status].get("content", {})
            assert status == "204" or "$ref" in content["application/json"]["schema"]
    assert "text/event-stream" in document["paths"]["/v1/jobs/{job}/events"]["get"]["responses"]["200"]["content"]
