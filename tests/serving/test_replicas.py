from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fusionray.serving.config import ServeConfig
from fusionray.serving.config_sections.stages import StageConfig
from fusionray.serving.replicas import NodeSize, plan_replicas, scaling_options

LAPTOP, SERVER, GPU_NODE = [NodeSize(2)], [NodeSize(64)], [NodeSize(16, 1)]


def plan(nodes: list[NodeSize], **settings: Any) -> ServeConfig:
    return plan_replicas(ServeConfig.model_validate({"bundle": "b", **settings}), nodes)


@pytest.mark.parametrize(
    ("nodes", "cpus", "max_replicas"),
    [([NodeSize(1)], 1, 1), (LAPTOP, 1, 2), ([NodeSize(4)], 2, 2), (SERVER, 4, 16), ([*SERVER, NodeSize(4)], 2, 34)],
)
def test_replicas_grow_to_what_the_cpus_hold(nodes: list[NodeSize], cpus: float, max_replicas: int) -> None:
    ingress = plan(nodes).ingress
    assert (ingress.cpus, ingress.gpus, ingress.max_replicas) == (cpus, 0, max_replicas)
    assert scaling_options(ingress)["autoscaling_config"]["min_replicas"] == 1


def test_the_part_with_the_generator_gets_the_gpus_and_their_share_of_the_cpus() -> None:
    ingress = plan([NodeSize(16, 8)]).ingress
    assert (ingress.cpus, ingress.gpus, ingress.max_replicas) == (2, 1, 8)
    apart = plan(GPU_NODE, fuser={"separate_deployment": True})
    assert (apart.fuser.gpus, apart.ingress.gpus) == (1, 0)
    assert apart.fuser.max_replicas == 1
    # Twelve CPUs are left, since the generator's replica has four.
    assert (apart.ingress.cpus, apart.ingress.max_replicas) == (4, 3)
    halves = plan(GPU_NODE, fuser={"separate_deployment": True, "gpus": 0.5, "cpus": 1})
    assert halves.fuser.max_replicas == 2


@pytest.mark.parametrize("cpus", [1, 2, 4, 6, 64])
def test_all_parts_fit_on_a_small_machine(cpus: float) -> None:
    apart = {"separate_deployment": True}
    config = plan([NodeSize(cpus)], fuser=apart, faces=apart)
    stages = (config.ingress, config.faces, config.fuser)
    assert sum(stage.cpus or 0.0 for stage in stages) <= cpus
    assert all((stage.max_replicas or 0) >= 1 for stage in stages)
    assert all((stage.max_replicas or 0) >= 2 for stage in stages) == (cpus >= 4)


@pytest.mark.parametrize("runtime", [{"providers": ["CPUExecutionProvider"]}, {"engine": "openvino"}])
def test_models_on_cpus_reserve_no_gpu(runtime: dict[str, Any]) -> None:
    assert plan(GPU_NODE, runtime=runtime).ingress.gpus == 0


def test_settings_win_over_the_plan() -> None:
    ingress = plan(SERVER, ingress={"min_replicas": 3, "max_replicas": 5, "cpus": 0.5, "gpus": 0}).ingress
    assert (ingress.min_replicas, ingress.max_replicas, ingress.cpus) == (3, 5, 0.5)
    assert plan(LAPTOP, ingress={"min_replicas": 3}).ingress.max_replicas == 3
    fixed = plan(SERVER, ingress={"num_replicas": 3}).ingress
    assert scaling_options(fixed)["num_replicas"] == 3
    assert "autoscaling_config" not in scaling_options(fixed)


def test_a_service_that_may_have_no_replica_starts_with_one() -> None:
    options = scaling_options(plan(LAPTOP, ingress={"min_replicas": 0}).ingress)["autoscaling_config"]
    assert (options["min_replicas"], options["initial_replicas"], options["max_replicas"]) == (0, 1, 2)


def test_a_gpu_replica_takes_more_requests_before_another_one_starts() -> None:
    on_cpus, on_gpu = (scaling_options(plan(nodes).ingress) for nodes in (SERVER, GPU_NODE))
    aims = [each["autoscaling_config"]["target_ongoing_requests"] for each in (on_cpus, on_gpu)]
    assert aims == [4, 16]


def test_a_fixed_number_excludes_limits() -> None:
    with pytest.raises(ValidationError, match="num_replicas 2 is a fixed number"):
        StageConfig(num_replicas=2, max_replicas=3)
    with pytest.raises(ValidationError, match="max_replicas 1 is below min_replicas 2"):
        StageConfig(min_replicas=2, max_replicas=1)
