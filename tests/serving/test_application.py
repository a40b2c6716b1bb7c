from __future__ import annotations

import io
import random
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from PIL import ExifTags, Image, ImageCms
from ray import serve

from fusionray.errors import BundleInvalid, ConfigInvalid, ServiceFailed
from fusionray.faces.image_files.decode import decode_image
from fusionray.faces.image_files.headers.image_header import read_header
from fusionray.ray_cluster.connection import find_free_port
from fusionray.safety.provenance import DIGITAL_SOURCE_TYPE, read_provenance
from fusionray.safety.verify import verify
from fusionray.serving.application import build_application, run, stopped_if_late, wait_until_running
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.limits import LimitConfig
from tests.support.pictures import draw_empty, draw_group, draw_person
from tests.support.serving import MAX_BODY_BYTES, OpenService, encode
from tests.support.tiny_bundle import write_tiny_bundle

SOURCE, TARGET = encode(draw_person(1)), encode(draw_person(2), "PNG")
EMPTY = encode(draw_empty())


@dataclass(frozen=True)
class Service:
    client: httpx.Client
    port: int
    bundle: str

    def fuse(self, source: bytes, target: bytes, **form: str) -> httpx.Response:
        return self.client.post("/v1/fuse", files={"source": source, "target": target}, data=form)


def serving(bundle: Path) -> ServeConfig:
    return ServeConfig(models=(ModelConfig(bundle=str(bundle)),))


@pytest.fixture(scope="module")
def service(open_service: OpenService) -> Iterator[Service]:
    with httpx.Client(base_url=open_service.url, timeout=30) as client:
        yield Service(client, open_service.port, open_service.bundle)


def check_problem(response: httpx.Response, status: int, reason: str, picture: str | None = None) -> str:
    """Check a problem document, and give its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == status
    assert document["reason"] == reason
    assert document.get("picture") == picture
    assert document["type"] == f"urn:fusionray:problem:{reason}"
    detail: str = document["detail"]
    return detail


def test_proxies_that_are_late_end_the_start_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(serve, "shutdown", lambda: stopped.append(True))
    with pytest.raises(ServiceFailed, match=r"\(Proxies not available\); start again when"), stopped_if_late():
        raise TimeoutError("Proxies not available")
    assert stopped == [True]


def test_it_is_healthy_once_it_runs(service: Service) -> None:
    assert service.client.get("/healthz").status_code == 200


def test_the_model_is_described(service: Service) -> None:
    (model,) = service.client.get("/v1/models").json()["models"]
    assert (model["name"], model["title"], model["size"], model["template"]) == ("default", "tiny", 64, "arcface_128")
    assert model["bundle"] == service.bundle
    assert model["provider"].endswith("ExecutionProvider")
    assert model["threads"] == 1


def test_two_pictures_become_one(service: Service) -> None:
    response = service.fuse(SOURCE, TARGET)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "image/png"
    assert response.headers["x-fusionray-model"] == "tiny"
    assert response.headers["x-fusionray-bundle"] == service.bundle
    assert response.headers["x-fusionray-faces"] == "1"
    fused = decode_image(response.content)
    changed = (fused != draw_person(2)).any(axis=2)
    assert 0.02 < changed.mean() < 0.6
    assert not changed[0].any()


@pytest.mark.parametrize(("sent", "answered"), [("jpeg", "jpeg"), ("webp", "webp"), ("bmp", "png")])
def test_the_answer_has_the_format_of_the_target_if_none_is_asked(service: Service, sent: str, answered: str) -> None:
    target = io.BytesIO()
    Image.fromarray(draw_person(2)).save(target, sent)
    response = service.fuse(SOURCE, target.getvalue())
    assert response.headers["content-type"] == f"image/{answered}"
    assert read_header(response.content).kind == answered


def test_the_answer_has_the_format_that_the_client_accepts(service: Service) -> None:
    files = {"source": SOURCE, "target": TARGET}
    for fields, answered in (({}, "webp"), ({"format": "jpeg"}, "jpeg")):
        response = service.client.post(
            "/v1/fuse", files=files, data=fields, headers={"Accept": "image/webp, */*;q=0.1"}
        )
        assert response.headers["content-type"] == f"image/{answered}"


def test_the_answer_keeps_the_colours_of_the_target_and_not_its_place(service: Service) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif = Image.Exif()
    exif[ExifTags.Base.Make] = "ACME"
    target = io.BytesIO()
    Image.fromarray(draw_person(2)).save(target, "JPEG", quality=95, icc_profile=profile, exif=exif)
    with Image.open(io.BytesIO(service.fuse(SOURCE, target.getvalue()).content)) as picture:
        assert picture.info["icc_profile"] == profile
        assert not picture.getexif()


@pytest.mark.parametrize("picture_format", ["png", "jpeg", "webp"])
def test_the_answer_has_the_asked_format_and_says_that_it_is_made(service: Service, picture_format: str) -> None:
    response = service.fuse(SOURCE, TARGET, format=picture_format)
    assert response.headers["content-type"] == f"image/{picture_format}"
    with Image.open(io.BytesIO(response.content)) as picture:
        assert picture.format == picture_format.upper()
        assert picture.size == (192, 192)
    provenance = read_provenance(response.content)
    assert provenance is not None
    assert provenance.bundle == service.bundle
    assert provenance.digital_source_type == DIGITAL_SOURCE_TYPE


def test_an_answer_is_signed_and_a_changed_byte_is_noticed(service: Service) -> None:
    response = service.fuse(SOURCE, TARGET, format="jpeg")
    assert response.headers["x-fusionray-provenance"] == "c2pa; test-key"
    found = verify(response.content)
    assert found.holds
    assert found.ai_made
    changed = bytearray(response.content)
    changed[-200] ^= 1
    assert not verify(bytes(changed)).holds


def test_a_visible_mark_is_drawn_if_asked_for(service: Service) -> None:
    plain, marked = (decode_image(service.fuse(SOURCE, TARGET, **form).content) for form in ({}, {"mark": "true"}))
    changed = (plain != marked).any(axis=2)
    assert changed[150:, 120:].any()
    assert not changed[:140].any()


def test_all_faces_are_replaced_if_asked_in_form_or_query(service: Service) -> None:
    group = encode(draw_group((4, 5)))
    assert service.fuse(SOURCE, group).headers["x-fusionray-faces"] == "1"
    assert service.fuse(SOURCE, group, faces="all").headers["x-fusionray-faces"] == "2"
    files = {"source": SOURCE, "target": group}
    response = service.client.post("/v1/fuse", params={"faces": "all", "format": "webp"}, files=files)
    assert (response.headers["x-fusionray-faces"], response.headers["content-type"]) == ("2", "image/webp")


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"hello, world", "not_an_image"), (b"", "not_an_image"), (b"GIF89a\x01\x00\x01\x00", "unknown_format")],
)
@pytest.mark.parametrize("role", ["source", "target"])
def test_what_is_no_picture_that_is_read_is_415(service: Service, data: bytes, reason: str, role: str) -> None:
    pictures = {"source": SOURCE, "target": TARGET, role: data}
    detail = check_problem(service.fuse(**pictures), 415, reason, role)
    assert f"{role} picture" in detail


@pytest.mark.parametrize("whole", [SOURCE, TARGET])
def test_a_damaged_picture_is_422(service: Service, whole: bytes) -> None:
    check_problem(service.fuse(SOURCE, whole[: len(whole) // 2]), 422, "damaged", "target")
    check_problem(service.fuse(whole[:12], TARGET), 422, "damaged", "source")


def test_a_picture_without_a_face_is_422_and_named(service: Service) -> None:
    assert "source picture" in check_problem(service.fuse(EMPTY, TARGET), 422, "no_face", "source")
    assert "target picture" in check_problem(service.fuse(SOURCE, EMPTY), 422, "no_face", "target")


def test_a_tiny_picture_is_422(service: Service) -> None:
    check_problem(service.fuse(encode(draw_empty(4, 4)), TARGET), 422, "too_small", "source")


def test_too_many_pixels_are_413_without_being_decoded(service: Service) -> None:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(10_000))), (b"IEND", b"")):
        bomb += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    check_problem(service.fuse(SOURCE, bomb), 413, "too_large", "target")
    check_problem(service.fuse(encode(draw_empty(1500, 1000)), TARGET), 413, "too_large", "source")


def test_a_body_that_states_to_be_too_long_is_413_before_it_is_sent(service: Service) -> None:
    head = (
        f"POST /v1/fuse HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"application/problem+json" in answer


def test_a_body_that_grows_too_long_is_413(service: Service) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="source"; filename="a"\r\n\r\n'
    head = (
        f"POST /v1/fuse HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\nTransfer-Encoding: chunked\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(head.encode())
        # The last chunk never comes: the answer does not wait for the end of the body.
        for chunk in (part, bytes(MAX_BODY_BYTES)):
            connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")


def test_missing_and_misunderstood_fields_are_422(service: Service) -> None:
    post = service.client.post
    assert "target" in check_problem(post("/v1/fuse", files={"source": SOURCE}), 422, "bad_fields")
    check_problem(post("/v1/fuse"), 422, "bad_fields")
    check_problem(post("/v1/fuse", json={"source": "x"}), 422, "bad_fields")
    check_problem(post("/v1/fuse", content=SOURCE, headers={"content-type": "image/jpeg"}), 422, "bad_fields")
    check_problem(post("/v1/fuse", files={"target": TARGET}, data={"source": "text"}), 422, "bad_fields")
    assert "faces" in check_problem(service.fuse(SOURCE, TARGET, faces="two"), 422, "bad_fields")
    assert "format" in check_problem(service.fuse(SOURCE, TARGET, format="gif"), 422, "bad_fields")


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "multipart/form-data; boundary=y", "multipart/form-data; boundary=x; charset=klingon"],
)
def test_a_form_that_cannot_be_parsed_is_refused(service: Service, content_type: str) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="source"; filename="a"\r\n\r\nabc\r\n--x--\r\n'
    response = service.client.post("/v1/fuse", content=body, headers={"content-type": content_type})
    assert response.status_code in (400, 422)
    assert response.headers["content-type"] == "application/problem+json"


def test_unknown_paths_and_methods_are_problems(service: Service) -> None:
    check_problem(service.client.get("/nowhere"), 404, "not_found")
    check_problem(service.client.get("/v1/fuse"), 405, "method_not_allowed")


def test_no_mutilated_request_is_answered_500(service: Service) -> None:
    rng = random.Random(7)
    request = service.client.build_request("POST", "/v1/fuse", files={"source": SOURCE, "target": TARGET})
    body, content_type = request.read(), request.headers["content-type"]
    for _ in range(60):
        mutilated = bytearray(body[: rng.choice([len(body), rng.randrange(len(body))])])
        for _ in range(rng.randrange(1, 40)):
            position = rng.randrange(min(len(mutilated), rng.choice([300, len(body)])) or 1)
            mutilated[position : position + 1] = rng.randbytes(1)
        headers = {"content-type": content_type if rng.random() < 0.9 else rng.randbytes(12).hex()}
        response = service.client.post("/v1/fuse", content=bytes(mutilated), headers=headers)
        assert response.status_code in (200, 400, 413, 415, 422), response.text


def test_requests_at_the_same_time_get_their_own_answers(service: Service) -> None:
    targets = [encode(draw_person(seed)) for seed in range(10, 14)]

    def fuse(target: bytes) -> bytes:
        return decode_image(service.fuse(SOURCE, target).content).tobytes()

    alone = [fuse(target) for target in targets]
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(lambda target: decode_image(service.fuse(SOURCE, target).content).tobytes(), targets * 3)
        )
    assert together == alone * 3
    assert len(set(alone)) == 4


@pytest.mark.slow(seconds=29)
def test_a_service_whose_model_cannot_be_loaded_is_not_healthy_and_says_why(service: Service, tmp_path: Path) -> None:
    application = build_application(serving(tmp_path / "no-bundle"))
    target = serve.RunTarget(target=application, name="broken", route_prefix="/broken")
    serve.run_many([target], wait_for_applications_running=False)
    assert service.client.get("/healthz").status_code == 200
    with pytest.raises(ServiceFailed, match=r"did not start: .*no-bundle: is not a bundle"):
        # Ray Serve tries it three times, on a busy machine for more than half a minute.
        wait_until_running("broken", timeout_seconds=120)
    assert "broken" not in serve.status().applications


def test_a_job_may_have_as_many_targets_as_the_settings_say(service: Service) -> None:
    most = LimitConfig().max_job_targets
    files = [("source", ("source", SOURCE)), *(("target", ("target", b"no picture")) for _ in range(most + 1))]
    refused = service.client.post("/v1/jobs", files=files)
    assert "may have 1000" in check_problem(refused, 413, "too_many_targets")
    started = service.client.post("/v1/jobs", files=files[:-1])
    assert started.status_code == 202, started.text
    assert started.json()["total"] == most
    assert service.client.delete(started.headers["location"]).status_code == 204


def test_a_single_request_changes_no_thread_for_the_generator(service: Service) -> None:
    for _ in range(3):
        assert "queue;dur=0.00," in f"{service.fuse(SOURCE, TARGET).headers['server-timing']},"


def wait_for_series(service: Service, name: str, *labels: str) -> str:
    """Wait until a series with some labels is exported; Ray gathers those of its processes every few seconds."""
    deadline = time.monotonic() + 60
    while True:
        page = service.client.get("/metrics").text
        series = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
        if any(all(label in line for label in labels) for line in series):
            return page
        assert time.monotonic() < deadline, f"no series {name} with {labels}"
        time.sleep(1)


def test_what_was_measured_is_exported_for_prometheus(service: Service) -> None:
    assert service.fuse(SOURCE, TARGET).status_code == 200
    page = wait_for_series(service, "ray_fusionray_stage_ms_count")
    for family in ("fusionray_requests_total", "fusionray_faces_total", "fusionray_batch_faces_bucket"):
        assert f"ray_{family}" in page
    page = wait_for_series(
        service, "ray_fusionray_http_requests_total", 'method="POST"', 'route="/v1/fuse"', 'status="200"'
    )
    for stage in ("decode", "detect", "read", "queue", "fuse", "paste", "encode", "total"):
        assert f'stage="{stage}"' in page
    assert page.count("# TYPE ray_fusionray_stage_ms ") == 1
    assert "fusionray_silent_nodes 0" in page


def test_a_second_address_is_refused_while_the_first_is_served(service: Service, tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    with pytest.raises(ConfigInvalid, match=f"already running on 127.0.0.1:{service.port}"):
        run(serving(bundle.folder), port=find_free_port(), blocking=False)


def test_a_bundle_with_a_wrong_hash_is_refused_before_anything_is_deployed(service: Service, tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    bundle.identity_path.write_bytes(b"changed")
    with pytest.raises(BundleInvalid, match=r"identity\.onnx"):
        run(serving(bundle.folder), port=service.port, blocking=False)
    assert service.client.get("/healthz").status_code == 200
