"""What a client sends, and what it raises, without a service."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusionray.client import FusionClient, KeptIdentity, read_archive
from fusionray.environment import KEY_VARIABLE
from fusionray.errors import AnswerInvalid, InputMissing, JobNotFinished, ServiceRefused, ServiceUnreachable
from fusionray.ray_cluster.connection import find_free_port
from tests.client.test_reading import JOB
from tests.support.recording_server import NO_ANSWER, Answer, RecordingServer, record_requests

PICTURE_HEADERS = {
    "content-type": "image/png",
    "X-FusionRay-Model": "tiny",
    "X-FusionRay-Bundle": "5e",
    "X-FusionRay-Provenance": "c2pa",
    "X-FusionRay-Boxes": "1,2,3,4",
    "Server-Timing": "fuse;dur=1.5",
}
FUSED = Answer(200, b"fused", PICTURE_HEADERS)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingServer]:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with record_requests() as recording:
        yield recording


@pytest.fixture
def client(server: RecordingServer) -> Iterator[FusionClient]:
    with FusionClient(server.url, timeout=10) as opened:
        yield opened


def busy(seconds: float) -> Answer:
    return Answer(503, {"status": 503, "reason": "busy", "detail": "full"}, {"Retry-After": f"{seconds:g}"})


def test_a_picture_is_bytes_a_path_or_an_open_file(
    server: RecordingServer, client: FusionClient, tmp_path: Path
) -> None:
    path = tmp_path / "ada lovelace.jpg"
    path.write_bytes(b"ada")
    server.answers += [FUSED] * 4
    with path.open("rb") as file:
        for source in (b"ada", str(path), path, file):
            fused = client.fuse(source, b"beach")
    assert (fused.data, fused.boxes, fused.timing) == (b"fused", ((1, 2, 3, 4),), {"fuse": 1.5})
    fused.save(tmp_path / "fused.png")
    assert (tmp_path / "fused.png").read_bytes() == b"fused"
    for request in server.requests:
        # The name of a file may be that of a person.
        assert [(part.name, part.filename, part.data) for part in request.read_form()] == [
            ("source", "picture", b"ada"),
            ("target", "picture", b"beach"),
        ]


def test_styles_are_sent_with_their_weights(server: RecordingServer, client: FusionClient) -> None:
    server.answers += [FUSED]
    client.stylize(b"town", [b"ink", b"oil"], weights=[0.7, 0.3], strength=0.5, picture_format="png")
    assert server.requests[0].path == "/v1/stylize"
    assert [(part.name, part.data) for part in server.requests[0].read_form()] == [
        ("content", b"town"),
        ("style", b"ink"),
        ("style", b"oil"),
        ("weights", b"0.700000,0.300000"),
        ("strength", b"0.500000"),
        ("format", b"png"),
    ]


def test_a_picture_that_cannot_be_read_is_named(client: FusionClient, tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match=r"none\.jpg: No such file"):
        client.fuse(tmp_path / "none.jpg", b"beach")
    with pytest.raises(TypeError, match="mode 'rb'"):
        client.fuse(io.StringIO("text"), b"beach")  # type: ignore[arg-type]


def test_only_options_that_are_named_are_sent(server: RecordingServer, client: FusionClient) -> None:
    server.answers += [FUSED] * 2
    client.fuse(
        KeptIdentity("id_1"),
        b"beach",
        faces="0,2",
        strength=0.5,
        skin="target",
        pixel_boost=4,
        mark=True,
        picture_format="png",
        model=None,
    )
    client.fuse(b"ada", b"beach", reference=b"ada again")
    first, second = ({part.name: part.data for part in request.read_form()} for request in server.requests)
    assert first == {
        "identity": b"id_1", "target": b"beach", "faces": b"0,2", "strength": b"0.5", "skin": b"target",
        "pixel_boost": b"4", "mark": b"true", "format": b"png",
    }  # fmt: skip
    assert second == {"source": b"ada", "target": b"beach", "reference": b"ada again", "faces": b"reference"}
    with pytest.raises(TypeError, match="'face'"):
        client.fuse(b"ada", b"beach", face="all")  # type: ignore[call-arg]


def test_a_refusal_tells_what_the_problem_document_says(server: RecordingServer, client: FusionClient) -> None:
    problem = {"status": 422, "reason": "no_face", "detail": "no face was found", "picture": "source"}
    server.answers += [Answer(422, problem), Answer(408, b"<html>too slow</html>", {"content-type": "text/html"})]
    with pytest.raises(ServiceRefused, match="no face was found") as refused:
        client.fuse(b"ada", b"beach")
    assert (refused.value.status, refused.value.reason, refused.value.picture) == (422, "no_face", "source")
    with pytest.raises(ServiceRefused) as slow:
        client.fuse(b"ada", b"beach")
    assert (slow.value.status, slow.value.reason, slow.value.retry_after) == (408, "request_timeout", None)


def test_a_full_service_is_asked_again_after_the_time_that_it_tells(
    server: RecordingServer, client: FusionClient
) -> None:
    server.answers += [busy(1), FUSED]
    started = time.monotonic()
    assert client.fuse(b"ada", b"beach").data == b"fused"
    assert time.monotonic() - started >= 1
    assert [len(request.read_form()) for request in server.requests] == [2, 2]


def test_a_request_is_not_repeated_beyond_the_time_out_or_unasked(server: RecordingServer) -> None:
    server.answers += [busy(11), Answer(503, {"status": 503, "reason": "busy"}), busy(0)]
    with FusionClient(server.url, timeout=10) as client:
        for expected in (11, None):
            with pytest.raises(ServiceRefused) as refused:
                client.list_models()
            assert refused.value.retry_after == expected
    with FusionClient(server.url, timeout=10, retry=False) as client, pytest.raises(ServiceRefused):
        client.list_models()
    assert len(server.requests) == 3


def test_a_request_whose_replica_is_lost_is_repeated_once_if_that_does_no_harm(
    server: RecordingServer, client: FusionClient
) -> None:
    server.answers += [FUSED, NO_ANSWER, FUSED]
    assert [client.fuse(b"ada", b"beach").data for _ in range(2)] == [b"fused"] * 2
    assert [len(request.read_form()) for request in server.requests] == [2, 2, 2]
    server.answers += [NO_ANSWER, NO_ANSWER]
    with pytest.raises(ServiceUnreachable, match="disconnected"):
        client.fuse(b"ada", b"beach")
    for leave in (lambda: client.keep_identity(b"ada"), lambda: client.create_job(b"ada", [b"beach"])):
        server.requests.clear()
        server.answers += [NO_ANSWER]
        with pytest.raises(ServiceUnreachable, match="disconnected"):
            leave()
        assert len(server.requests) == 1
    server.answers += [NO_ANSWER]
    with FusionClient(server.url, timeout=10, retry=False) as once, pytest.raises(ServiceUnreachable):
        once.list_models()


def test_a_service_that_is_not_ready_is_not_waited_for(server: RecordingServer, client: FusionClient) -> None:
    server.answers += [busy(1), Answer(200, {"status": "ready"})]
    assert [client.is_ready(), client.is_ready()] == [False, True]
    with FusionClient(f"http://127.0.0.1:{find_free_port()}") as nobody:
        assert not nobody.is_ready()


def test_without_an_answer_the_service_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a-secret-key-0123456789")
    url = f"http://127.0.0.1:{find_free_port()}"
    with FusionClient(url) as client, pytest.raises(ServiceUnreachable, match=f"{url}: no answer") as error:
        client.list_models()
    assert "a-secret-key" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://host", "http://", "http://ann:key@host", "http://host:port", ""]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url: name the service"):
        FusionClient(url)


def test_the_key_is_the_argument_or_that_of_the_environment(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "of-the-environment")
    for key in (None, "of-the-argument"):
        with FusionClient(server.url, key) as client, pytest.raises(ServiceRefused):
            client.list_models()
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer of-the-environment", "Bearer of-the-argument"]
    with pytest.raises(ValueError, match="api_key") as error:
        FusionClient(server.url, "secret\nkey")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("body", [b"<html></html>", b"[]", b'{"models": 3}', b'{"models": [{"name": "a"}]}'])
def test_an_answer_of_something_else_is_named(server: RecordingServer, client: FusionClient, body: bytes) -> None:
    server.answers.append(Answer(200, body))
    with pytest.raises(AnswerInvalid):
        client.list_models()


def test_a_picture_without_the_headers_of_the_service_is_named(server: RecordingServer, client: FusionClient) -> None:
    server.answers.append(Answer(200, b"fused", {**PICTURE_HEADERS, "X-FusionRay-Boxes": "1,2"}))
    with pytest.raises(AnswerInvalid, match="X-FusionRay-Boxes"):
        client.fuse(b"ada", b"beach")


def test_pages_follow_each_other(server: RecordingServer, client: FusionClient) -> None:
    server.answers += [Answer(200, {"jobs": [JOB, JOB], "next": "c1"}), Answer(200, {"jobs": [JOB], "next": None})]
    assert len(list(client.list_jobs("done"))) == 3
    first, second = (request.query for request in server.requests)
    assert first == {"status": ["done"], "limit": ["200"]}
    assert second == {**first, "cursor": ["c1"]}


def test_waiting_for_a_job_ends_with_the_time_out(server: RecordingServer, client: FusionClient) -> None:
    server.answers += [Answer(200, JOB | {"ended_at": None})] * 20
    with pytest.raises(JobNotFinished, match=r"job a1: 2 of 2 pictures after 0\.2 s"):
        client.wait_for_job("a1", timeout=0.2)
    server.answers[:] = [Answer(200, JOB | {"ended_at": None}), Answer(200, JOB)]
    assert client.wait_for_job("a1").has_ended


def test_a_stream_that_breaks_off_is_opened_again(server: RecordingServer, client: FusionClient) -> None:
    events = {"content-type": "text/event-stream"}

    def stream(name: str, **change: object) -> Answer:
        return Answer(200, f"event: {name}\ndata: {json.dumps(JOB | change)}\n\n".encode(), events)

    server.answers += [stream("progress", ended_at=None), stream("end")]
    assert [state.has_ended for state in client.follow_job("a1")] == [False, True]
    with pytest.raises(ServiceRefused):
        next(client.follow_job("a1"))


def test_a_zip_that_breaks_off_leaves_no_file(server: RecordingServer, client: FusionClient, tmp_path: Path) -> None:
    place = tmp_path / "job.zip"
    with pytest.raises(ServiceRefused):
        client.fetch_result("a1", place)
    assert list(tmp_path.iterdir()) == []
    server.answers.append(Answer(200, b"zip", {"content-length": "9"}))
    with pytest.raises(ServiceUnreachable):
        client.fetch_result("a1", place)
    assert list(tmp_path.iterdir()) == []
    server.answers.append(Answer(200, b"zip"))
    client.fetch_result("a1", place)
    assert [path.name for path in tmp_path.iterdir()] == ["job.zip"]
    with pytest.raises(AnswerInvalid, match="not the zip of a fusionray service"):
        list(read_archive(place))


def test_an_archive_without_results_is_named() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("0001.jpg", b"picture")
    with pytest.raises(AnswerInvalid, match=r"results\.json"):
        list(read_archive(archive))


def test_an_idempotency_key_is_quoted(server: RecordingServer, client: FusionClient) -> None:
    with pytest.raises(ServiceRefused):
        client.create_job(b"ada", [b"beach"], idempotency_key='my "first" \\ job')
    assert server.requests[0].headers["idempotency-key"] == r'"my \"first\" \\ job"'
    with pytest.raises(ValueError, match="characters that a header cannot hold") as error:
        client.create_job(b"ada", [b"beach"], idempotency_key="secret\njob")
    assert "secret" not in str(error.value)


def test_an_id_stays_in_its_part_of_the_path(server: RecordingServer, client: FusionClient) -> None:
    with pytest.raises(ServiceRefused):
        client.remove_job("a/../b?x=1")
    assert server.requests[0].path == "/v1/jobs/a%2F..%2Fb%3Fx%3D1"
