"""Replicas share the load; more of them come as it rises and go as it falls, and no request fails meanwhile."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import httpx
import pytest
from ray import serve

from fusionray.serving.application import APP_NAME, run
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.stages import FaceStageConfig, GeneratorStageConfig, StageConfig
from tests.support.serving_load import Load, find_replicas, write_variant
from tests.support.waiting import wait_for

REQUESTS = 200
SERIES = re.compile(r"ray_serve_deployment_request_counter\w*\{(.*)\} (\S+)")


def count_requests(url: str, part: str) -> Counter[str]:
    """Count the requests to `fuse` that each replica of a part has answered, by the metrics of Ray Serve."""
    counts = Counter[str]()
    for labels, value in SERIES.findall(httpx.get(f"{url}/metrics", timeout=30).text):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if found.get("deployment") == part:
            counts[found["replica"]] += int(float(value))
    return counts


@pytest.mark.slow(seconds=25)
def test_replicas_of_a_part_share_the_requests(port: int, tmp_path: Path) -> None:
    bundle = write_variant(tmp_path / "bundle", 0)
    config = ServeConfig(
        models=(ModelConfig(bundle=str(bundle.folder)),),
        faces=FaceStageConfig(separate_deployment=True, cpus=0.25, num_replicas=2),
        fuser=GeneratorStageConfig(separate_deployment=True, cpus=0.25, num_replicas=2),
    )
    run(config, port=port, blocking=False)
    load = Load(f"http://127.0.0.1:{port}")
    # Replicas of other services of this Ray have left their counts.
    earlier = {part: count_requests(load.url, part) for part in ("Faces", "Fuser")}
    with load.running(4):
        wait_for(lambda: len(load.answers) >= REQUESTS)
    assert {status for status, _ in load.answers} == {200}
    for part, before in earlier.items():
        wait_for(lambda part=part, before=before: (count_requests(load.url, part) - before).total() >= REQUESTS)
        counts = count_requests(load.url, part) - before
        assert len(counts) == 2, counts
        assert min(counts.values()) >= 0.35 * counts.total(), counts


@pytest.mark.slow(seconds=60)
def test_replicas_come_and_go_with_the_load(port: int, tmp_path: Path) -> None:
    bundle = write_variant(tmp_path / "bundle", 0)
    config = ServeConfig(
        models=(ModelConfig(bundle=str(bundle.folder)),),
        ingress=StageConfig(cpus=0.25, max_replicas=3, target_ongoing_requests=1, downscale_delay_seconds=3),
    )
    run(config, port=port, blocking=False)
    assert len(find_replicas("Ingress")) == 1
    quiet, busy = Load(f"http://127.0.0.1:{port}"), Load(f"http://127.0.0.1:{port}")
    with quiet.running(1):
        with busy.running(8):
            wait_for(lambda: running_replicas() == 3)
            first = count_requests(busy.url, "Ingress")
            wait_for(lambda: len(count_requests(busy.url, "Ingress") - first) == 3)
        wait_for(lambda: len(find_replicas("Ingress")) == 1)
        answered = len(quiet.answers)
        wait_for(lambda: len(quiet.answers) >= answered + 20)
    assert {status for status, _ in quiet.answers + busy.answers} == {200}


@pytest.mark.slow(seconds=40)
def test_the_first_request_after_a_pause_waits_for_a_replica(port: int, tmp_path: Path) -> None:
    bundle = write_variant(tmp_path / "bundle", 0)
    config = ServeConfig(
        models=(ModelConfig(bundle=str(bundle.folder)),),
        ingress=StageConfig(cpus=0.25, min_replicas=0, downscale_delay_seconds=2),
    )
    run(config, port=port, blocking=False)
    wait_for(lambda: not find_replicas("Ingress"))
    load = Load(f"http://127.0.0.1:{port}")
    with load.running(2):
        wait_for(lambda: len(load.answers) >= 10)
    assert {status for status, _ in load.answers} == {200}


def running_replicas() -> int:
    return serve.status().applications[APP_NAME].deployments["Ingress"].replica_states.get("RUNNING", 0)
