"""The client and the real service: what it sends is in the OpenAPI document, and what comes back is what is meant."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from fusionray import client as answers
from fusionray.client import FusionClient, KeptIdentity, read_archive
from fusionray.client.answers import Box
from fusionray.client.forms import FuseOptions
from fusionray.environment import KEY_VARIABLE
from fusionray.errors import JobNotFinished, ServiceRefused
from fusionray.safety.verify import verify
from tests.support.documents import read_sections, run_blocks
from tests.support.pictures import draw_empty, draw_person
from tests.support.recording_server import Answer, Recorded, RecordingServer, record_requests
from tests.support.serving import OpenService, encode

SOURCE, TARGET, EMPTY = encode(draw_person(1)), encode(draw_person(2)), encode(draw_empty())
KEPT = KeptIdentity("id_" + "A" * 43)
COMMON: FuseOptions = {
    "model": "tiny",
    "picture_format": "png",
    "mark": True,
    "consent": "token",
    "strength": 0.5,
    "skin": "target",
    "pixel_boost": 2,
}
OPTIONS: FuseOptions = {**COMMON, "faces": "all"}
EXPIRES = datetime(2031, 1, 1, tzinfo=UTC)

# Calls of each method, which together send every field that it can send.
CALLS: dict[str, list[Callable[[FusionClient], object]]] = {
    "fuse": [
        lambda client: client.fuse(SOURCE, TARGET, **OPTIONS),
        lambda client: client.fuse([KEPT, KEPT], TARGET, faces="0,1"),
        lambda client: client.fuse(KEPT, TARGET, reference=SOURCE, reference_similarity=0.5, **COMMON),
    ],
    "find_faces": [
        lambda client: client.find_faces(TARGET),
        lambda client: client.find_faces(TARGET, reference=SOURCE),
    ],
    "keep_identity": [lambda client: client.keep_identity(SOURCE, consent="token")],
    "get_identity": [lambda client: client.get_identity(KEPT)],
    "remove_identity": [lambda client: client.remove_identity(KEPT)],
    "fuse_batch": [
        lambda client: client.fuse_batch(SOURCE, [TARGET, TARGET], **OPTIONS),
        lambda client: client.fuse_batch(KEPT, [TARGET], reference=SOURCE, reference_similarity=0.5),
    ],
    "create_job": [
        lambda client: client.create_job(SOURCE, [TARGET, TARGET], **OPTIONS),
        lambda client: client.create_job(KEPT, target_uris=["s3://a/b"], webhook="https://a/", idempotency_key="k"),
        lambda client: client.create_job(
            None, [TARGET], source_uri="s3://a/c", reference=SOURCE, reference_similarity=0.5
        ),
        lambda client: client.create_job(SOURCE, video=__file__, leave_out=["data"], steady_colours=True),
    ],
    "get_job": [lambda client: client.get_job("a1")],
    "list_jobs": [lambda client: list(client.list_jobs("done"))],
    "cancel_job": [lambda client: client.cancel_job("a1")],
    "remove_job": [lambda client: client.remove_job("a1")],
    "fetch_result": [lambda client: client.fetch_result("a1", "never-written.zip")],
    "list_items": [lambda client: list(client.list_items("a1"))],
    "fetch_item": [lambda client: client.fetch_item("a1", 1)],
    "fetch_preview": [lambda client: client.fetch_preview("a1")],
    "fetch_report": [lambda client: client.fetch_report("a1")],
    "fetch_figures": [lambda client: client.fetch_figures("a1")],
    "follow_job": [lambda client: list(client.follow_job("a1"))],
    "wait_for_job": [lambda client: client.wait_for_job("a1")],
    "list_models": [lambda client: client.list_models()],
    "usage": [lambda client: client.usage()],
    "list_keys": [lambda client: client.list_keys()],
    "add_key": [
        lambda client: client.add_key("ann", expires=EXPIRES, requests_per_minute=1, images_per_day=1, models=["tiny"])
    ],
    "remove_key": [lambda client: client.remove_key("ann")],
    "is_ready": [lambda client: client.is_ready()],
}
# Methods that send nothing, or what this service's document does not have.
NOT_IN_DOCUMENT = {"close", "make_picture", "stylize", "create_style_job"}
# Operations without a method, each with its reason.
EXCLUDED = {"GET /healthz": "a probe for whoever runs the service", "GET /metrics": "for Prometheus"}
# Fields of the query that a form has, too.
IN_FORM_TOO = {"model", "faces", "format"}
PAGES = {"list_jobs": "jobs", "list_items": "items"}
# Each answer, and the schema of the document that describes it.
SCHEMAS = {
    answers.FoundFaces: "Faces",
    answers.Face: "Face",
    answers.KeptIdentity: "KeptIdentity",
    answers.Job: "JobDocument",
    answers.Webhook: "WebhookDocument",
    answers.VideoProgress: "VideoDocument",
    answers.WebhookAttempt: "WebhookAttemptDocument",
    answers.Item: "ItemDocument",
    answers.Usage: "Usage",
    answers.LimitUsage: "LimitUsage",
    answers.ApiKey: "ApiKeyInfo",
    answers.NewKey: "AddedApiKey",
    answers.Model: "ModelCard",
}
# What cards of models for other tasks have.
OF_OTHER_TASKS = {"task", "inputs"}


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of the document: which requests are for it, and what they may and must have."""

    name: str
    pattern: re.Pattern[str]
    query: dict[str, bool]
    headers: dict[str, bool]
    schema: dict[str, Any]

    def takes(self, request: Recorded) -> bool:
        return self.pattern.fullmatch(f"{request.method} {request.path}") is not None


def read_operations(document: dict[str, Any]) -> list[Operation]:
    found = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(name))
            parameters = operation.get("parameters", [])
            query, headers = (
                {one["name"]: one.get("required", False) for one in parameters if one["in"] == place}
                for place in ("query", "header")
            )
            (body,) = [*operation.get("requestBody", {}).get("content", {"": {}}).values()]
            reference = body.get("schema", {}).get("$ref", "")
            schema = document["components"]["schemas"].get(reference.rpartition("/")[2], {})
            found.append(Operation(name, re.compile(pattern), query, headers, schema))
    return found


@pytest.fixture(scope="module")
def document(open_service: OpenService) -> dict[str, Any]:
    document: dict[str, Any] = httpx.get(f"{open_service.url}/openapi.json", timeout=30).json()
    return document


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[Recorded]]:
    """The requests of each method: the second page of lists included."""
    requests: dict[str, list[Recorded]] = {}
    with record_requests() as server, FusionClient(server.url, "a-key", timeout=10) as client:
        for name, calls in CALLS.items():
            for call in calls:
                record_call(server, client, name, call)
            requests[name] = list(server.requests)
            server.requests.clear()
    return requests


def record_call(
    server: RecordingServer, client: FusionClient, name: str, call: Callable[[FusionClient], object]
) -> None:
    if name in PAGES:
        server.answers.append(Answer(200, {PAGES[name]: [], "next": "c1"}))
    if name == "is_ready":
        assert call(client) is False
        return
    with pytest.raises(ServiceRefused, match="teapot"):
        call(client)


def list_fields(request: Recorded) -> set[str]:
    """Name the fields of a form, or of JSON."""
    if not request.body:
        return set()
    if request.headers["content-type"] == "application/json":
        return set(json.loads(request.body))
    return {part.name for part in request.read_form()}


def list_choices(schema: dict[str, Any]) -> list[set[str]]:
    return [set(choice["required"]) for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ()))]


def test_every_method_has_a_call_here() -> None:
    methods = {name for name, _ in inspect.getmembers(FusionClient, inspect.isfunction) if not name.startswith("_")}
    assert methods == CALLS.keys() | NOT_IN_DOCUMENT


def test_every_operation_of_the_document_has_a_method(
    document: dict[str, Any], recorded: dict[str, list[Recorded]]
) -> None:
    operations = read_operations(document)
    sent = [request for requests in recorded.values() for request in requests]
    assert [request for request in sent if not any(one.takes(request) for one in operations)] == []
    used = {one.name for one in operations if any(one.takes(request) for request in sent)}
    assert used | EXCLUDED.keys() == {one.name for one in operations}
    assert used & EXCLUDED.keys() == set()


def test_what_is_sent_is_in_the_document_and_what_it_requires_is_sent(
    document: dict[str, Any], recorded: dict[str, list[Recorded]]
) -> None:
    operations = read_operations(document)
    for request in (request for requests in recorded.values() for request in requests):
        (operation,) = (one for one in operations if one.takes(request))
        fields = list_fields(request)
        assert fields <= operation.schema.get("properties", {}).keys(), operation.name
        assert set(operation.schema.get("required", ())) <= fields, operation.name
        choices = list_choices(operation.schema)
        assert not choices or any(choice <= fields for choice in choices), operation.name
        assert request.query.keys() <= operation.query.keys(), operation.name
        for places, sent in ((operation.query, request.query), (operation.headers, request.headers)):
            assert {name.lower() for name, required in places.items() if required} <= {*map(str.lower, sent)}


def test_every_field_of_the_document_can_be_sent(document: dict[str, Any], recorded: dict[str, list[Recorded]]) -> None:
    sent = [request for requests in recorded.values() for request in requests]
    for operation in read_operations(document):
        requests = [request for request in sent if operation.takes(request)]
        if operation.name in EXCLUDED:
            continue
        fields = set().union(*(list_fields(request) for request in requests))
        assert operation.schema.get("properties", {}).keys() == fields, operation.name
        queries = set().union(*(request.query for request in requests))
        assert operation.query.keys() - (IN_FORM_TOO & fields) == queries, operation.name
        headers = set().union(*(request.headers for request in requests))
        assert {name.lower() for name in operation.headers} <= headers, operation.name
        assert all(request.headers["authorization"] == "Bearer a-key" for request in requests)


@pytest.mark.parametrize("answer", SCHEMAS, ids=lambda answer: answer.__name__)
def test_answers_have_the_fields_of_the_document(document: dict[str, Any], answer: type[Any]) -> None:
    schema = document["components"]["schemas"][SCHEMAS[answer]]
    fields = {field.name for field in dataclasses.fields(answer)} - OF_OTHER_TASKS
    assert fields == schema["properties"].keys()
    always = {field.name for field in dataclasses.fields(answer) if field.default is dataclasses.MISSING}
    # A field with a default may be missing by the document; the service sends it nevertheless.
    defaults = {name for name, field in schema["properties"].items() if "default" in field or "anyOf" in field}
    assert always <= {*schema["required"], *defaults}


@pytest.fixture
def client(open_service: OpenService, monkeypatch: pytest.MonkeyPatch) -> Iterator[FusionClient]:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with FusionClient(open_service.url) as opened:
        yield opened
        for job in opened.list_jobs():
            opened.remove_job(job.job)


def is_inside(box: Box, width: int, height: int) -> bool:
    left, top, box_width, box_height = box
    return 0 <= left < left + box_width <= width and 0 <= top < top + box_height <= height


def test_a_picture_is_fused(client: FusionClient, open_service: OpenService, tmp_path: Path) -> None:
    assert client.is_ready()
    fused = client.fuse(SOURCE, TARGET, picture_format="png", strength=0.5, faces="0")
    assert (fused.media_type, fused.bundle) == ("image/png", open_service.bundle)
    assert len(fused.boxes) == 1
    assert is_inside(fused.boxes[0], 192, 192)
    assert fused.provenance == "c2pa; test-key"
    assert {"decode", "total"} <= fused.timing.keys()
    fused.save(tmp_path / "fused.png")
    assert verify((tmp_path / "fused.png").read_bytes()).ai_made
    with Image.open(tmp_path / "fused.png") as picture:
        assert (picture.size, picture.format) == ((192, 192), "PNG")
    assert [model.title for model in client.list_models()] == [fused.model]


def test_a_picture_without_a_face_is_refused(client: FusionClient) -> None:
    with pytest.raises(ServiceRefused, match="no face") as refused:
        client.fuse(SOURCE, EMPTY)
    assert (refused.value.status, refused.value.reason, refused.value.picture) == (422, "no_face", "target")
    with pytest.raises(ServiceRefused) as unknown:
        client.fuse(KEPT, TARGET)
    assert (unknown.value.status, unknown.value.reason) == (404, "unknown_identity")


def test_faces_are_found_and_compared(client: FusionClient) -> None:
    found = client.find_faces(TARGET, reference=TARGET)
    assert (found.width, found.height, len(found.faces)) == (192, 192, 1)
    assert is_inside(found.faces[0].box, 192, 192)
    assert len(found.faces[0].landmarks) == 5
    assert found.faces[0].similarity == pytest.approx(1, abs=0.01)
    assert client.fuse(SOURCE, TARGET, reference=TARGET, reference_similarity=0.9).boxes == (found.faces[0].box,)


def test_an_identity_is_kept_used_and_removed(client: FusionClient) -> None:
    kept = client.keep_identity(SOURCE)
    assert kept.box is not None
    assert is_inside(kept.box, 192, 192)
    assert kept.expires_at is not None
    assert datetime.now(UTC) < kept.expires_at < datetime.now(UTC) + timedelta(days=40)
    assert client.get_identity(KeptIdentity(kept.identity)).expires_at == kept.expires_at
    assert client.get_identity(kept) == kept
    by_handle, by_picture = (client.fuse(source, TARGET, picture_format="png") for source in (kept, SOURCE))
    assert read_pixels(by_handle.data) == read_pixels(by_picture.data)
    client.remove_identity(kept)
    with pytest.raises(ServiceRefused) as gone:
        client.get_identity(kept)
    assert (gone.value.status, gone.value.reason) == (404, "unknown_identity")


def read_pixels(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as picture:
        return picture.tobytes()


def test_a_batch_has_a_picture_or_a_problem_for_each_target(client: FusionClient) -> None:
    first, second = client.fuse_batch(SOURCE, [TARGET, EMPTY], picture_format="png")
    assert (first.index, first.status, first.file, first.problem) == (1, "done", "0001.png", None)
    assert first.data is not None
    assert read_pixels(first.data) == read_pixels(client.fuse(SOURCE, TARGET, picture_format="png").data)
    assert (second.index, second.status, second.data) == (2, "failed", None)
    assert second.problem is not None
    assert second.problem.reason == "no_face"


def test_a_job_is_started_followed_fetched_and_removed(client: FusionClient, tmp_path: Path) -> None:
    started = client.create_job(SOURCE, [TARGET, EMPTY], picture_format="png", idempotency_key="one job")
    repeated = client.create_job(SOURCE, [TARGET, EMPTY], picture_format="png", idempotency_key="one job")
    assert (repeated.job, started.total) == (started.job, 2)
    *_, last = client.follow_job(started.job)
    assert (last.status, last.done, last.failed) == ("done", 1, 1)
    assert client.wait_for_job(started.job, timeout=30) == client.get_job(started.job) == last
    assert [job.job for job in client.list_jobs("done")] == [started.job]
    done, failed = client.list_items(started.job)
    assert (done.status, failed.status) == ("done", "failed")
    assert failed.problem is not None
    assert failed.problem.picture == "target"
    client.fetch_result(started.job, tmp_path / "job.zip")
    first, second = read_archive(tmp_path / "job.zip")
    assert first.data == client.fetch_item(started.job, 1)
    assert (first.boxes, second.data) == (done.boxes, None)
    client.remove_job(started.job)
    with pytest.raises(ServiceRefused) as gone:
        client.get_job(started.job)
    assert (gone.value.status, gone.value.reason) == (404, "unknown_job")


def test_a_job_can_be_cancelled_while_somebody_waits_for_it(client: FusionClient) -> None:
    started = client.create_job(SOURCE, [TARGET] * 200)
    with pytest.raises(JobNotFinished, match="of 200 pictures"):
        client.wait_for_job(started.job, timeout=0)
    with pytest.raises(ServiceRefused, match="not_finished"):
        client.fetch_result(started.job, "never-written.zip")
    assert client.cancel_job(started.job).status == "cancelled"
    assert client.wait_for_job(started.job, timeout=30).status == "cancelled"


def test_the_caller_of_a_service_without_keys_has_no_limits(client: FusionClient) -> None:
    usage = client.usage()
    assert (usage.name, usage.admin, usage.requests_per_minute) == ("anonymous", False, None)
    with pytest.raises(ServiceRefused) as refused:
        client.list_keys()
    assert refused.value.status in {403, 409}


def test_the_example_of_the_page_runs(
    open_service: OpenService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, data in (("ada", SOURCE), ("beach", TARGET), ("1", TARGET), ("2", EMPTY)):
        (tmp_path / f"{name}.jpg").write_bytes(data)
    (example,) = read_sections("serving.md")[""]
    assert "http://127.0.0.1:8000" in example
    run_blocks([example.replace("http://127.0.0.1:8000", open_service.url)], tmp_path, {})
    with Image.open(tmp_path / "fused.jpg") as picture:
        assert picture.size == (192, 192)
