"""Identities, batches and jobs over HTTP, with keys, quotas, consent and an audit log, as an operator would run it."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import numpy as np
import pytest
from ray import serve

from fusionray.environment import KEY_VARIABLE, ROOT_VARIABLE
from fusionray.faces.image_files.decode import decode_image
from fusionray.ray_cluster.connection import find_free_port
from fusionray.safety.audit import AuditConfig, hash_bytes
from fusionray.safety.audit_chain import check_chain
from fusionray.safety.consent import ConsentConfig
from fusionray.safety.target_policy import TargetPolicyConfig
from fusionray.safety.verify import verify
from fusionray.serving.application import run
from fusionray.serving.auth.key_file import add_key
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.api_keys import ApiKeyConfig
from fusionray.serving.config_sections.limits import LimitConfig
from tests.support.pictures import draw_empty, draw_group, draw_person
from tests.support.service_logs import ServiceLogs
from tests.support.serving import encode
from tests.support.target_classifier import IN_RANGE, write_classifier
from tests.support.tiny_bundle import write_tiny_bundle

SOURCE, OTHER_SOURCE, REFUSED = (encode(draw_person(seed)) for seed in (1, 2, 3))
TARGETS = [encode(draw_person(seed)) for seed in (4, 5, 6)]


@dataclass(frozen=True)
class Kept:
    url: str
    keys: dict[str, str]
    audit: Path
    permitted: Path

    def client(self, name: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, headers={"authorization": f"Bearer {self.keys[name]}"})


@pytest.fixture(scope="module")
def kept(no_service: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    root = tmp_path_factory.mktemp("kept")
    bundle = write_tiny_bundle(root / "bundle")
    key_file = root / "keys.yaml"
    keys = {
        "ada": add_key(key_file, "ada"),
        "ben": add_key(key_file, "ben"),
        "few": add_key(key_file, "few", images_per_day=3),
        "other": add_key(key_file, "other", models=("another",)),
    }
    permitted = root / "permitted.txt"
    permitted.write_text("".join(f"{hash_bytes(source)}\n" for source in (SOURCE, OTHER_SOURCE, encode(draw_empty()))))
    config = ServeConfig(
        models=(ModelConfig(bundle=str(bundle.folder)),),
        limits=LimitConfig(max_batch_targets=4, max_job_targets=6),
        keys=ApiKeyConfig(file=str(key_file)),
        consent=ConsentConfig(policy="allow-list", file=str(permitted)),
        target_policy=TargetPolicyConfig(
            model=str(write_classifier(root / "red.onnx")), refuse={"red": 0.95}, **IN_RANGE
        ),
        audit=AuditConfig(path=str(root / "audit.jsonl")),
    )
    port = find_free_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv(KEY_VARIABLE, raising=False)
        environment.setenv(ROOT_VARIABLE, str(root))
        run(config, port=port, blocking=False)
    yield Kept(f"http://127.0.0.1:{port}", keys, root / "audit.jsonl", permitted)
    serve.shutdown()


@pytest.fixture
def ada(kept: Kept) -> Iterator[httpx.Client]:
    with kept.client("ada") as client:
        yield client


def keep(client: httpx.Client, source: bytes = SOURCE) -> str:
    answer = client.post("/v1/identities", files={"source": source})
    assert answer.status_code == 201, answer.text
    identity: str = answer.json()["identity"]
    return identity


def handle_header(identity: str, **headers: str) -> dict[str, str]:
    return {"X-FusionRay-Identity": identity, **headers}


def refused(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["reason"]


def test_a_target_that_the_policy_refuses_is_not_fused_anywhere(kept: Kept, ada: httpx.Client) -> None:
    red = encode(np.full((160, 160, 3), (255, 0, 0), np.uint8))
    answer = ada.post("/v1/fuse", files={"source": SOURCE, "target": red})
    assert refused(answer) == (403, "target_refused")
    assert (answer.json()["rule"], answer.json()["picture"]) == ("red", "target")
    entry = json.loads(kept.audit.read_text().splitlines()[-1])
    assert (entry["status"], entry["reason"], entry["target_sha256"]) == (403, "target_refused: red", hash_bytes(red))
    assert entry["output_sha256"] is None
    for path in ("/v1/batches", "/v1/jobs"):
        files = [("source", SOURCE), ("target", red), ("target", TARGETS[0])]
        answer = ada.post(path, files=files)
        if path == "/v1/jobs":
            job = answer.json()["job"]
            assert wait_for_job(ada, job)["failed"] == 1
            answer = ada.get(f"/v1/jobs/{job}/result")
        with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
            first, second = json.loads(archive.read("results.json"))
        assert first["problem"]["rule"] == "red"
        assert second["status"] == "done"


def test_without_a_key_only_probes_and_the_page_are_answered(kept: Kept) -> None:
    with httpx.Client(base_url=kept.url, timeout=60) as client:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/jobs/x"):
            assert refused(client.get(path)) == (401, "unauthorized")
        for path in ("/healthz", "/readyz", "/", "/page/page.js"):
            assert client.get(path).status_code == 200
        assert "default-src 'none'" in client.get("/").headers["content-security-policy"]


def test_a_kept_identity_gives_the_picture_that_its_source_gives(ada: httpx.Client) -> None:
    identity = keep(ada)
    by_source, by_handle, again = (
        ada.post("/v1/fuse", files={**files, "target": TARGETS[0]}, data=data)
        for files, data in (({"source": SOURCE}, {}), ({}, {"identity": identity}), ({}, {"identity": identity}))
    )
    pictures = [decode_image(answer.content).astype(int) for answer in (by_source, by_handle, again)]
    # The face is read from a region that was cut out and stored; what it is resampled from differs by little.
    assert abs(pictures[0] - pictures[1]).max() <= 6
    assert (pictures[1] == pictures[2]).all()
    assert verify(by_handle.content).ai_made
    told = ada.get("/v1/identities", headers=handle_header(identity))
    assert (told.status_code, told.headers["cache-control"]) == (200, "no-store")
    assert 3500 < (datetime.fromisoformat(told.json()["expires_at"]) - datetime.now(UTC)).total_seconds() < 3600


def test_an_identity_is_its_owners_alone_and_can_be_deleted(kept: Kept, ada: httpx.Client) -> None:
    identity = keep(ada)
    form = {"files": {"target": TARGETS[0]}, "data": {"identity": identity}}
    with kept.client("ben") as ben:
        assert refused(ben.get("/v1/identities", headers=handle_header(identity))) == (404, "unknown_identity")
        assert refused(ben.delete("/v1/identities", headers=handle_header(identity))) == (404, "unknown_identity")
        assert refused(ben.post("/v1/fuse", **form)) == (404, "unknown_identity")
    assert ada.delete("/v1/identities", headers=handle_header(identity)).status_code == 204
    assert refused(ada.post("/v1/fuse", **form)) == (404, "unknown_identity")
    assert refused(ada.get("/v1/identities", headers=handle_header(identity))) == (404, "unknown_identity")
    assert refused(ada.get("/v1/identities", headers=handle_header("id_x"))) == (422, "bad_fields")
    assert refused(ada.delete("/v1/identities")) == (422, "bad_fields")


def test_a_source_is_a_picture_or_an_identity_and_not_both(ada: httpx.Client) -> None:
    identity = keep(ada)
    both = ada.post("/v1/fuse", files={"source": SOURCE, "target": TARGETS[0]}, data={"identity": identity})
    assert refused(both) == (422, "bad_fields")
    assert refused(ada.post("/v1/fuse", files={"target": TARGETS[0]})) == (422, "bad_fields")
    assert refused(ada.post("/v1/identities", files={"source": encode(draw_empty())})) == (422, "no_face")


def test_sources_that_are_not_permitted_are_refused_by_every_way(ada: httpx.Client) -> None:
    answers = [
        ada.post("/v1/fuse", files={"source": REFUSED, "target": TARGETS[0]}),
        ada.post("/v1/identities", files={"source": REFUSED}),
    ]
    assert [refused(answer) for answer in answers] == [(403, "consent_source_not_permitted")] * 2
    batch = ada.post("/v1/batches", files=[("source", REFUSED), ("target", TARGETS[0])])
    (entry,) = read_results(batch.content)
    assert entry["problem"]["reason"] == "consent_source_not_permitted"


def test_a_stored_face_is_refused_once_its_source_is_no_longer_permitted(kept: Kept, ada: httpx.Client) -> None:
    identity = keep(ada)
    form = {"files": {"target": TARGETS[0]}, "data": {"identity": identity}}
    assert ada.post("/v1/fuse", **form).status_code == 200
    permitted = kept.permitted.read_text()
    kept.permitted.write_text(permitted.replace(hash_bytes(SOURCE), "0" * 64))
    try:
        assert refused(ada.post("/v1/fuse", **form)) == (403, "consent_source_not_permitted")
    finally:
        kept.permitted.write_text(permitted)
    assert ada.post("/v1/fuse", **form).status_code == 200


def read_results(archive: bytes) -> list[dict[str, object]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        found: list[dict[str, object]] = json.loads(opened.read("results.json"))
        return found


def test_a_batch_answers_every_target_with_its_picture_or_its_problem(ada: httpx.Client) -> None:
    targets = [TARGETS[0], b"no picture", encode(draw_group((7, 8)))]
    form = [("source", SOURCE), *(("target", target) for target in targets)]
    answer = ada.post("/v1/batches", files=form, data={"faces": "all", "format": "jpeg"})
    assert answer.headers["content-type"] == "application/zip"
    first, second, third = read_results(answer.content)
    assert (first["status"], second["status"], third["status"]) == ("done", "failed", "done")
    assert second["problem"]["reason"] == "not_an_image"  # type: ignore[index]
    assert len(third["boxes"]) == 2  # type: ignore[arg-type]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.namelist() == ["0001.jpg", "0003.jpg", "results.json"]
        assert verify(archive.read("0003.jpg")).ai_made
    many = ada.post("/v1/batches", files=[("source", SOURCE), *(("target", TARGETS[0]) for _ in range(5))])
    assert refused(many) == (413, "too_many_targets")


def wait_for_job(client: httpx.Client, job: str) -> dict[str, object]:
    deadline = time.monotonic() + 60
    while (status := client.get(f"/v1/jobs/{job}").json())["status"] in ("queued", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return status


def test_a_job_is_worked_on_told_about_fetched_and_removed(kept: Kept, ada: httpx.Client) -> None:
    identity = keep(ada)
    form = [("target", target) for target in (*TARGETS, b"no picture")]
    created = ada.post("/v1/jobs", files=form, data={"identity": identity})
    assert created.status_code == 202, created.text
    job = created.json()["job"]
    assert created.headers["location"] == f"/v1/jobs/{job}"
    status = wait_for_job(ada, job)
    assert (status["status"], status["total"], status["done"], status["failed"]) == ("done", 4, 3, 1)
    result = ada.get(f"/v1/jobs/{job}/result")
    with zipfile.ZipFile(io.BytesIO(result.content)) as archive:
        made = decode_image(archive.read("0002.jpg"))
    alone = ada.post("/v1/fuse", files={"target": TARGETS[1]}, data={"identity": identity})
    assert (made == decode_image(alone.content)).all()
    with kept.client("ben") as ben:
        assert refused(ben.get(f"/v1/jobs/{job}/result")) == (404, "unknown_job")
    assert ada.delete(f"/v1/jobs/{job}").status_code == 204
    assert refused(ada.get(f"/v1/jobs/{job}")) == (404, "unknown_job")


def test_a_key_is_good_for_its_models_and_its_quota_and_no_more(kept: Kept) -> None:
    with kept.client("other") as other:
        answer = other.post("/v1/fuse", files={"source": SOURCE, "target": TARGETS[0]})
        assert refused(answer) == (403, "model_not_allowed")
    with kept.client("few") as few:
        for _ in range(4):
            # What could not be made is not counted.
            answer = few.post("/v1/fuse", files={"source": SOURCE, "target": encode(draw_empty())})
            assert refused(answer) == (422, "no_face")
            batch = [("target", encode(draw_empty())), ("target", b"no picture")]
            assert few.post("/v1/batches", files=[("source", SOURCE), *batch]).status_code == 200
        codes = [few.post("/v1/fuse", files={"source": SOURCE, "target": TARGETS[0]}).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        answer = few.post("/v1/fuse", files={"source": SOURCE, "target": TARGETS[0]})
        assert refused(answer) == (429, "images_per_day")
        assert int(answer.headers["retry-after"]) > 0


def test_every_request_leaves_a_line_without_a_picture(kept: Kept, ada: httpx.Client) -> None:
    answer = ada.post(
        "/v1/fuse", files={"source": SOURCE, "target": TARGETS[2]}, headers={"x-request-id": "request-of-a-test"}
    )
    (line,) = [line for line in kept.audit.read_text().splitlines() if "request-of-a-test" in line]
    entry = json.loads(line)
    assert entry["who"] == "ada"
    assert (entry["source_sha256"], entry["target_sha256"]) == (hash_bytes(SOURCE), hash_bytes(TARGETS[2]))
    assert entry["output_sha256"] == hash_bytes(answer.content)
    assert (entry["status"], entry["num_faces"]) == (200, 1)
    assert "sources_sha256" not in entry
    assert kept.keys["ada"] not in kept.audit.read_text()


def test_several_sources_need_consent_each_and_stand_in_the_line(kept: Kept, ada: httpx.Client) -> None:
    row = np.hstack([draw_person(4), draw_person(5)])
    handles = [keep(ada, source) for source in (SOURCE, OTHER_SOURCE)]
    by_files = [("source", SOURCE), ("source", OTHER_SOURCE)]
    target, faces = ("target", encode(row)), {"faces": "1,0"}
    hashes = [hash_bytes(source) for source in (SOURCE, OTHER_SOURCE)]
    unknown = f"id_{'A' * 43}"
    sent = [
        ([*by_files, target], {}, (200, ""), hashes),
        ([target], {"identity": handles}, (200, ""), hashes),
        (
            [by_files[0], ("source", REFUSED), target],
            {},
            (403, "consent_source_not_permitted"),
            [hashes[0], hash_bytes(REFUSED)],
        ),
        (
            [target],
            {"identity": [handles[0], unknown]},
            (404, "unknown_identity"),
            [hash_bytes(handle.encode()) for handle in (handles[0], unknown)],
        ),
    ]
    for number, (files, data, (status, reason), expected) in enumerate(sent):
        headers = {"x-request-id": f"of-several-{number}"}
        answer = ada.post("/v1/fuse", files=files, data={**faces, **data}, headers=headers)
        assert answer.status_code == status, answer.text
        if status != 200:
            assert refused(answer) == (status, reason)
            assert answer.json()["detail"].startswith("source 2: ")
        (line,) = [line for line in kept.audit.read_text().splitlines() if f"of-several-{number}" in line]
        entry = json.loads(line)
        assert (entry["status"], entry["reason"]) == (status, reason)
        assert (entry["sources_sha256"], entry["source_sha256"]) == (expected, expected[0])
    assert not any(handle in kept.audit.read_text() for handle in (*handles, unknown))
    assert check_chain(kept.audit).is_whole


def test_the_line_of_a_stored_face_names_its_source_and_not_its_handle(kept: Kept, ada: httpx.Client) -> None:
    identity = keep(ada)
    data, headers = {"identity": identity}, {"x-request-id": "request-by-handle"}
    assert ada.post("/v1/fuse", files={"target": TARGETS[1]}, data=data, headers=headers).status_code == 200
    (line,) = [line for line in kept.audit.read_text().splitlines() if "request-by-handle" in line]
    assert json.loads(line)["source_sha256"] == hash_bytes(SOURCE)
    assert identity not in kept.audit.read_text()


def test_stored_and_found_faces_leave_a_line_too_and_so_do_refusals(kept: Kept, ada: httpx.Client) -> None:
    sent = [
        ("/v1/identities", {"source": SOURCE}, 201, "identities"),
        ("/v1/identities", {"source": b"no picture"}, 415, "identities"),
        ("/v1/faces", {"target": TARGETS[0]}, 200, "faces"),
        ("/v1/faces", {"target": encode(draw_empty())}, 422, "faces"),
    ]
    for number, (path, files, status, task) in enumerate(sent):
        answer = ada.post(path, files=files, headers={"x-request-id": f"audited-{number}"})
        assert answer.status_code == status, answer.text
        (line,) = [line for line in kept.audit.read_text().splitlines() if f"audited-{number}" in line]
        entry = json.loads(line)
        assert (entry["who"], entry["status"], entry["task"]) == ("ada", status, task)
        assert entry["inputs_sha256"] == {name: hash_bytes(data) for name, data in files.items()}
    assert check_chain(kept.audit).is_whole


def test_looking_at_a_stored_face_and_removing_it_leave_a_line_with_the_hash_of_its_picture(
    kept: Kept, ada: httpx.Client
) -> None:
    identity = keep(ada)
    sent = [
        ("GET", 200, "", "identities.find", {"source": hash_bytes(SOURCE)}),
        ("DELETE", 204, "", "identities.remove", {"source": hash_bytes(SOURCE)}),
        # Without a face there is no picture: the handle, which is a key, is hashed.
        ("GET", 404, "unknown_identity", "identities.find", {"identity": hash_bytes(identity.encode())}),
        ("DELETE", 404, "unknown_identity", "identities.remove", {"identity": hash_bytes(identity.encode())}),
    ]
    for number, (method, status, reason, task, hashes) in enumerate(sent):
        headers = handle_header(identity, **{"x-request-id": f"by-handle-{number}"})
        assert ada.request(method, "/v1/identities", headers=headers).status_code == status
        (line,) = [line for line in kept.audit.read_text().splitlines() if f"by-handle-{number}" in line]
        entry = json.loads(line)
        assert (entry["who"], entry["status"], entry["reason"], entry["task"]) == ("ada", status, reason, task)
        assert entry["inputs_sha256"] == hashes
    assert identity not in kept.audit.read_text()


def test_no_log_of_the_service_holds_a_handle_or_a_key(
    kept: Kept, ada: httpx.Client, service_logs: ServiceLogs
) -> None:
    identity = keep(ada)
    headers = handle_header(identity, **{"x-request-id": "looked-for-in-logs"})
    form = {"files": {"target": TARGETS[0]}, "data": {"identity": identity}}
    answers = [
        ada.get("/v1/identities", headers=headers),
        ada.post("/v1/fuse", headers={"x-request-id": "looked-for-in-logs"}, **form),
        ada.get("/v1/identities", headers=handle_header("id_x")),
        ada.delete("/v1/identities", headers=headers),
        ada.delete("/v1/identities", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 422, 204, 404]
    assert not any(identity in value for answer in answers for value in (str(answer.url), *answer.headers.values()))
    # The logs have these requests: otherwise it would prove nothing that they lack the handle.
    proxy, replicas = service_logs.wait_for_lines("DELETE /v1/identities", "looked-for-in-logs", 4)
    for text in (proxy, replicas, kept.audit.read_text()):
        assert identity not in text
        assert not any(key in text for key in kept.keys.values())
