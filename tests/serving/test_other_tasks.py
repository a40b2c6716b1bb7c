"""Bundles of another task than face fusion behind real HTTP, beside one of face fusion and alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from onnx import helper
from ray import serve

from fusionray.bundle.bundle import bundle_hash, write_bundle
from fusionray.client import FusionClient
from fusionray.environment import KEY_VARIABLE, ROOT_VARIABLE
from fusionray.errors import BundleInvalid, ConfigInvalid, ServiceRefused
from fusionray.faces.image_files.decode import decode_image
from fusionray.ray_cluster.connection import find_free_port
from fusionray.runtime.config import RuntimeConfig
from fusionray.safety.audit import AuditConfig
from fusionray.safety.consent import ConsentConfig
from fusionray.safety.provenance import read_provenance
from fusionray.safety.verify import verify
from fusionray.serving.application import run
from fusionray.serving.auth.key_file import add_key
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.api_keys import ApiKeyConfig
from fusionray.serving.config_sections.limits import LimitConfig
from fusionray.serving.config_sections.stages import FaceStageConfig
from fusionray.serving.http.api import build_api
from fusionray.serving.pipeline.memory_budget import MemoryBudget
from fusionray.serving.pipeline.model_registry import ModelRegistry, UnknownModel, WrongTask
from fusionray.serving.tasks.parts import Parts
from fusionray.serving.tasks.pictures import PictureTask
from fusionray.serving.tasks.registry import check_tasks, open_task
from fusionray.serving.tasks.served_models import ServedModels
from tests.support.blend_bundle import BLEND_SIZE, build_mean, describe_blend, write_blend_bundle
from tests.support.pictures import draw_person
from tests.support.serving import encode
from tests.support.tiny_bundle import serialise, write_tiny_bundle

CONTENT, STYLE = (encode(np.full((40, 60, 3), level, np.uint8), "PNG") for level in (20, 120))
MAX_BODY_BYTES = 400_000


@dataclass(frozen=True)
class Service:
    client: httpx.Client
    bundle: str
    audit: Path
    hasty_key: str

    def blend(self, content: bytes = CONTENT, style: bytes = STYLE, **form: str) -> httpx.Response:
        return self.client.post("/v1/blend", files={"content": content, "style": style}, data=form)


@pytest.fixture(scope="module")
def service(no_service: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("tasks")
    faces, blend = write_tiny_bundle(folder / "faces"), write_blend_bundle(folder / "mean")
    key = add_key(folder / "keys.yaml", "ada")
    hasty_key = add_key(folder / "keys.yaml", "bob", requests_per_minute=2)
    config = ServeConfig(
        models=list_models(faces.folder, blend.folder),
        runtime=RuntimeConfig(threads=1),
        limits=LimitConfig(max_body_bytes=MAX_BODY_BYTES),
        keys=ApiKeyConfig(file=str(folder / "keys.yaml")),
        audit=AuditConfig(path=str(folder / "audit.jsonl")),
    )
    port = find_free_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv(KEY_VARIABLE, raising=False)
        environment.setenv(ROOT_VARIABLE, str(folder / "root"))
        run(config, port=port, blocking=False)
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, headers=headers) as client:
        yield Service(client, bundle_hash(blend), folder / "audit.jsonl", hasty_key)
    serve.shutdown()


def check_problem(response: httpx.Response, status: int, reason: str) -> str:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert response.json()["reason"] == reason
    detail: str = response.json()["detail"]
    return detail


def test_named_pictures_become_a_signed_one(service: Service) -> None:
    response = service.blend()
    assert response.status_code == 200, response.text
    assert decode_image(response.content).shape == (BLEND_SIZE, BLEND_SIZE, 3)
    assert np.unique(decode_image(response.content)).tolist() == [70]
    assert (response.headers["x-fusionray-model"], response.headers["x-fusionray-bundle"]) == ("mean", service.bundle)
    assert "x-fusionray-faces" not in response.headers
    stages = {part.partition(";")[0] for part in response.headers["server-timing"].split(", ")}
    assert stages == {"total", "decode", "run", "queue", "encode"}
    provenance = read_provenance(response.content)
    assert provenance is not None
    assert provenance.bundle == service.bundle
    found = verify(response.content)
    assert found.holds
    assert found.ai_made


def test_a_client_chooses_the_format_in_form_or_query(service: Service) -> None:
    assert service.blend(format="webp").headers["content-type"] == "image/webp"
    files = {"content": CONTENT, "style": STYLE}
    found = service.client.post("/v1/blend", params={"format": "jpeg", "model": "mean"}, files=files)
    assert found.headers["content-type"] == "image/jpeg"


def test_requests_go_through_the_guards_of_face_fusion(service: Service) -> None:
    files = {"content": CONTENT, "style": STYLE}
    check_problem(httpx.post(f"{service.client.base_url}/v1/blend", files=files), 401, "unauthorized")
    refused = service.blend(style=bytes(MAX_BODY_BYTES))
    check_problem(refused, 413, "too_large")
    # The rest of the body is not read, so the client is told to send its next request on another connection.
    assert refused.headers["connection"] == "close"
    assert "style" in check_problem(service.client.post("/v1/blend", files={"content": CONTENT}), 422, "bad_fields")
    response = service.blend(style=b"no picture")
    assert "style picture" in check_problem(response, 415, "not_an_image")
    assert response.json()["picture"] == "style"
    check_problem(service.blend(model="nobody"), 404, "unknown_model")


def test_every_task_has_models_of_its_own(service: Service) -> None:
    assert "ask for mean" in check_problem(service.blend(model="faces"), 422, "wrong_task")
    face = encode(draw_person(1))
    files = {"source": face, "target": face}
    assert service.client.post("/v1/fuse", files=files).headers["x-fusionray-model"] == "tiny"
    check_problem(service.client.post("/v1/fuse", files=files, data={"model": "mean"}), 422, "wrong_task")


def test_models_are_described_by_what_they_do(service: Service) -> None:
    faces, mean = service.client.get("/v1/models").json()["models"]
    assert (faces["default"], faces["template"]) == (True, "arcface_128")
    assert "task" not in faces
    assert (mean["name"], mean["task"], mean["inputs"], mean["size"]) == ("mean", "blend", ["content", "style"], 32)
    assert mean["bundle"] == service.bundle
    assert "template" not in mean
    assert service.client.get("/readyz").status_code == 200


def test_the_client_makes_pictures_of_every_task(service: Service) -> None:
    url, key = str(service.client.base_url), service.client.headers["authorization"].removeprefix("Bearer ")
    with FusionClient(url, key) as client:
        made = client.make_picture("blend", {"content": CONTENT, "style": STYLE}, picture_format="png")
        faces, mean = client.list_models()
    assert np.unique(decode_image(made.data)).tolist() == [70]
    assert (made.media_type, made.model, made.bundle) == ("image/png", "mean", service.bundle)
    assert (faces.task, faces.template, mean.template) == (None, "arcface_128", None)
    assert (mean.task, mean.inputs) == ("blend", ("content", "style"))
    with FusionClient(url, "no-key-of-this-service") as stranger, pytest.raises(ServiceRefused, match="unauthorized"):
        stranger.list_models()


def test_the_audit_log_names_the_task_and_hashes_its_pictures(service: Service) -> None:
    service.blend(format="webp")
    line = json.loads(service.audit.read_text().splitlines()[-1])
    assert (line["who"], line["status"], line["task"], line["model"]) == ("ada", 200, "blend", "mean")
    assert set(line["inputs_sha256"]) == {"content", "style"}
    assert len(line["output_sha256"]) == 64


def test_the_document_describes_the_route(service: Service) -> None:
    document = service.client.get("/openapi.json").json()
    assert {"/v1/blend", "/v1/fuse", "/v1/jobs"} <= document["paths"].keys()
    form = document["paths"]["/v1/blend"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert set(form["encoding"]) == {"content", "style"}
    schema = document["components"]["schemas"][form["schema"]["$ref"].rpartition("/")[2]]
    assert set(schema["required"]) == {"content", "style"}
    assert set(schema["properties"]) == {"content", "style", "model", "format", "mark", "consent"}


def test_a_key_that_asks_too_often_is_429(service: Service) -> None:
    files, headers = {"content": CONTENT, "style": STYLE}, {"authorization": f"Bearer {service.hasty_key}"}
    answers = [service.client.post("/v1/blend", files=files, headers=headers) for _ in range(4)]
    assert answers[0].status_code == 200
    check_problem(answers[-1], 429, "requests_per_minute")


def build_task(consent: ConsentConfig | None = None) -> PictureTask:
    config = ServeConfig(models=(ModelConfig(bundle="x"),), consent=consent or ConsentConfig())
    with pytest.warns(RuntimeWarning, match="TEST KEY"):
        return PictureTask("blend", ("content", "style"), Parts(config, None, None, MemoryBudget(2**30)))  # type: ignore[arg-type]


def test_the_tasks_of_a_replica_share_the_memory_for_pictures() -> None:
    config, budget = build_task().config, MemoryBudget(2**20)
    parts = Parts(config, None, None, budget)  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="TEST KEY"):
        tasks = [open_task(name, ("content", "style"), parts) for name in ("blend", "deblur")]
    assert [task.budget for task in tasks] == [budget, budget]  # type: ignore[attr-defined]


def test_a_service_without_face_fusion_has_none_of_its_routes() -> None:
    task = build_task()
    models = ServedModels(None, {"blend": task})  # type: ignore[arg-type]
    api = build_api(task.config, task.requests, models, None)
    served = {"/v1/blend", "/healthz", "/readyz", "/v1/models", "/v1/usage", "/metrics"}
    served |= {"/v1/keys", "/v1/keys/{name}"}
    assert set(api.openapi()["paths"]) == served
    assert {getattr(route, "path", None) for route in api.routes} == {*served, "/openapi.json"}


def list_models(*folders: Path) -> tuple[ModelConfig, ...]:
    return tuple(ModelConfig(name=folder.name, bundle=str(folder)) for folder in folders)


def build_registry(*folders: Path) -> ModelRegistry:
    return ModelRegistry(ServeConfig(models=list_models(*folders)))


def test_the_registry_chooses_by_task(tmp_path: Path) -> None:
    faces, blend = write_tiny_bundle(tmp_path / "faces"), write_blend_bundle(tmp_path / "blend")
    registry = build_registry(faces.folder, blend.folder)
    assert registry.tasks == {"face_fusion": ("source", "target"), "blend": ("content", "style")}
    assert registry.choose(None, "blend").name == "blend"
    assert registry.choose(None, "face_fusion").name == registry.choose(None).name == "faces"
    with pytest.raises(WrongTask, match="the model blend is for blend, not for face_fusion; ask for faces"):
        registry.choose("blend", "face_fusion")
    with pytest.raises(UnknownModel):
        registry.choose("nobody", "blend")


def write_other_inputs(folder: Path) -> None:
    picture = describe_blend().tensors["generator.onnx"]["output"]
    size: list[str | int] = ["N", 3, BLEND_SIZE, BLEND_SIZE]
    model = serialise([helper.make_node("Identity", ["photo"], ["output"])], {}, {"photo": size}, {"output": size})
    tensors = {"generator.onnx": {"photo": picture, "output": picture}}
    write_bundle(folder, {"generator.onnx": model}, describe_blend(tensors=tensors))


def test_a_name_keeps_its_task_and_inputs_while_the_service_runs(tmp_path: Path) -> None:
    folder = write_blend_bundle(tmp_path / "blend").folder
    registry = build_registry(folder)
    write_bundle(folder, {"generator.onnx": build_mean()}, describe_blend(licence="MIT"))
    assert set(registry.look_up()) == {"blend"}
    write_other_inputs(folder)
    with pytest.raises(BundleInvalid, match="does blend with photo, and the model blend does blend with cont"):
        registry.look_up()


def test_models_of_one_task_take_the_same_inputs(tmp_path: Path) -> None:
    folder = write_blend_bundle(tmp_path / "blend").folder
    write_other_inputs(tmp_path / "other")
    with pytest.raises(BundleInvalid, match="model other: takes photo, and another model of the task blend takes"):
        build_registry(folder, tmp_path / "other")


def test_names_and_settings_that_cannot_be_served_are_refused_at_the_start() -> None:
    config = ServeConfig(models=(ModelConfig(bundle="x"),))
    with pytest.raises(BundleInvalid, match="/v1/jobs is a route of the service"):
        check_tasks(config, {"jobs": ("photo",)})
    with pytest.raises(BundleInvalid, match="its input 'format' cannot be a field of a form"):
        check_tasks(config, {"blend": ("format",)})
    with pytest.raises(ConfigInvalid, match=r"faces\.separate_deployment: no model of face fusion is served"):
        check_tasks(
            config.model_copy(update={"faces": FaceStageConfig(separate_deployment=True)}), {"blend": ("photo",)}
        )
