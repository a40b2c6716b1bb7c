"""Several models, versions that change under load, and parts of the service in replicas of their own."""

from __future__ import annotations

import csv
import os
import signal
import socket
from collections import Counter
from pathlib import Path

import httpx
import pytest
from ray import serve

from fusionray.bundle.bundle import bundle_hash
from fusionray.errors import ServiceFailed
from fusionray.serving import application
from fusionray.serving.application import APP_NAME, build_application, run, wait_until_running
from fusionray.serving.config import CanaryConfig, ModelConfig, ServeConfig
from fusionray.serving.config_sections.stages import FaceStageConfig, GeneratorStageConfig, StageConfig
from fusionray.tracking.bundles import register_bundle
from fusionray.tracking.runs import open_run
from fusionray.tracking.store import make_client, tracking_uri
from tests.support.serving_load import SOURCE, TARGET, Load, find_replicas, write_variant
from tests.support.waiting import wait_for


def test_a_bundle_that_is_replaced_answers_without_a_failed_request(port: int, tmp_path: Path) -> None:
    old = write_variant(tmp_path / "bundle", 0)
    run(ServeConfig(models=(ModelConfig(bundle=str(old.folder)),), alias_poll_seconds=0.3), port=port, blocking=False)
    load = Load(f"http://127.0.0.1:{port}")
    with load.running():
        wait_for(lambda: len(load.answers) >= 5)
        new = write_variant(tmp_path / "bundle", 1)
        wait_for(lambda: load.answers[-1][1] == bundle_hash(new))
    assert {status for status, _ in load.answers} == {200}
    assert {bundle for _, bundle in load.answers} == {bundle_hash(old), bundle_hash(new)}


def test_a_service_that_is_not_reached_is_not_left_behind(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ServiceFailed("it does not answer")

    monkeypatch.setattr(application, "wait_until_reachable", fail)
    config = ServeConfig(models=(ModelConfig(bundle=str(write_variant(tmp_path / "bundle", 0).folder)),))
    with pytest.raises(ServiceFailed, match="does not answer"):
        run(config, port=port, blocking=False)
    assert APP_NAME not in serve.status().applications


@pytest.mark.slow(seconds=20)
def test_an_alias_that_moves_and_is_moved_back_answers_without_a_failed_request(port: int, tmp_path: Path) -> None:
    uri = tracking_uri(None, str(tmp_path))
    run_id = open_run(uri, "faces", "served", {})
    old, new = (write_variant(tmp_path / name, seed) for seed, name in enumerate(("old", "new")))
    location = register_bundle(uri, old.folder, "served", "prod", run_id)
    config = ServeConfig(models=(ModelConfig(bundle=location),), tracking_uri=uri, alias_poll_seconds=0.3)
    run(config, port=port, blocking=False)
    load = Load(f"http://127.0.0.1:{port}")
    with load.running():
        wait_for(lambda: len(load.answers) >= 5)
        register_bundle(uri, new.folder, "served", "prod", run_id)
        wait_for(lambda: load.answers[-1][1] == bundle_hash(new))
        make_client(uri).set_registered_model_alias("served", "prod", "1")
        wait_for(lambda: load.answers[-1][1] == bundle_hash(old))
    assert {status for status, _ in load.answers} == {200}


@pytest.mark.slow(seconds=16)
def test_a_new_configuration_is_deployed_without_a_failed_request(port: int, tmp_path: Path) -> None:
    old, new = write_variant(tmp_path / "old", 0), write_variant(tmp_path / "new", 1)
    run(ServeConfig(models=(ModelConfig(bundle=str(old.folder)),)), port=port, blocking=False)
    load = Load(f"http://127.0.0.1:{port}")
    with load.running():
        wait_for(lambda: len(load.answers) >= 5)
        config = ServeConfig(models=(ModelConfig(bundle=str(new.folder)),))
        target = serve.RunTarget(target=build_application(config), name=APP_NAME, route_prefix="/")
        serve.run_many([target], wait_for_applications_running=False)
        wait_until_running(APP_NAME, 60)
        wait_for(lambda: load.answers[-1][1] == bundle_hash(new))
    assert {status for status, _ in load.answers} == {200}


def test_a_killed_replica_costs_no_more_than_the_answer_that_it_was_sending(port: int, tmp_path: Path) -> None:
    bundle = write_variant(tmp_path / "bundle", 0)
    config = ServeConfig(
        models=(ModelConfig(bundle=str(bundle.folder)),), ingress=StageConfig(num_replicas=2, cpus=0.5)
    )
    run(config, port=port, blocking=False)
    load = Load(f"http://127.0.0.1:{port}")
    # Ray Serve calls an application running before HAProxy knows of all its replicas.
    wait_for(lambda: count_known_replicas() == 2)
    with load.running():
        wait_for(lambda: len(load.answers) >= 20)
        os.kill(min(find_replicas("Ingress")), signal.SIGKILL)
        count = len(load.answers)
        wait_for(lambda: len(load.answers) >= count + 50)
    lost = [said for status, said in load.answers if status != 200]
    # Another replica answers what the dead one had not begun to answer; of what it was sending, the rest is missing.
    assert all("complete message body" in said for said in lost), lost
    assert len(lost) <= 1


def count_known_replicas() -> int:
    """Ask HAProxy, by the socket of the process that listens now, to how many replicas it sends requests."""
    (path,) = Path(os.environ["RAY_TMPDIR"]).glob("h*/**/a.sock")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"show stat\n")
        told = connection.makefile().read().removeprefix("# ").splitlines()
    rows = csv.DictReader(told)
    return sum(row["svname"].startswith("SERVE_REPLICA") and row["status"].startswith("UP") for row in rows)


@pytest.mark.slow(seconds=20)
def test_models_stand_side_by_side_and_a_canary_takes_its_share(port: int, tmp_path: Path) -> None:
    bundles = [write_variant(tmp_path / str(seed), seed) for seed in range(3)]
    config = ServeConfig(
        models=(
            ModelConfig(
                name="first",
                bundle=str(bundles[0].folder),
                canary=CanaryConfig(bundle=str(bundles[1].folder), share=0.4),
            ),
            ModelConfig(name="second", bundle=str(bundles[2].folder)),
        ),
        faces=FaceStageConfig(separate_deployment=True, cpus=0.5),
        fuser=GeneratorStageConfig(separate_deployment=True, cpus=0.5, num_replicas=1),
    )
    run(config, port=port, blocking=False)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        cards = client.get("/v1/models").json()["models"]
        assert [(card["name"], card["default"]) for card in cards] == [("first", True), ("second", False)]
        assert [card["canary"] and (card["canary"]["bundle"], card["canary"]["share"]) for card in cards] == [
            (bundle_hash(bundles[1]), 0.4),
            None,
        ]
        files = {"source": SOURCE, "target": TARGET}
        found = Counter(client.post("/v1/fuse", files=files).headers["x-fusionray-bundle"] for _ in range(60))
        assert set(found) == {bundle_hash(bundles[0]), bundle_hash(bundles[1])}
        assert 8 <= found[bundle_hash(bundles[1])] <= 42
        second = client.post("/v1/fuse", files=files, data={"model": "second"})
        assert second.headers["x-fusionray-bundle"] == bundle_hash(bundles[2])
        missing = client.post("/v1/fuse", files=files, data={"model": "third"})
        assert (missing.status_code, missing.json()["reason"]) == (404, "unknown_model")
        assert "first, second" in missing.json()["detail"]
        assert [len(find_replicas(part)) for part in ("Ingress", "Faces", "Fuser")] == [1, 1, 1]


@pytest.mark.slow(seconds=20)
def test_models_of_which_a_replica_holds_one_are_exchanged_or_asked_for_where_they_are(
    port: int, tmp_path: Path
) -> None:
    bundles = {name: write_variant(tmp_path / name, seed) for seed, name in enumerate(("first", "second", "third"))}
    config = ServeConfig(
        models=tuple(ModelConfig(name=name, bundle=str(bundle.folder)) for name, bundle in bundles.items()),
        models_per_replica=1,
        faces=FaceStageConfig(separate_deployment=True, cpus=0.25, num_replicas=2),
        fuser=GeneratorStageConfig(separate_deployment=True, cpus=0.25, num_replicas=2),
    )
    run(config, port=port, blocking=False)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        for name, bundle in 4 * list(bundles.items()):
            answer = client.post("/v1/fuse", files={"source": SOURCE, "target": TARGET}, data={"model": name})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-fusionray-bundle"] == bundle_hash(bundle)
