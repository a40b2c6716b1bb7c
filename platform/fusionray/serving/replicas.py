"""How many replicas the parts of the service have, and on how many CPUs, GPUs and threads each of them works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import ray

from fusionray.hardware.device import count_cpus, has_nvidia_device
from fusionray.hardware.memory import return_freed_memory
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.providers import CPU, GPU_PROVIDERS
from fusionray.runtime.engines.session import select_providers
from fusionray.serving.addresses import keep_replica_on_loopback
from fusionray.serving.config import ServeConfig
from fusionray.serving.config_sections.stages import StageConfig

# One process makes good use of so many CPUs; further CPUs are for further replicas.
MAX_CPUS = 4
# Requests that a replica has inside while all of its hardware works: on a CPU some are decoded, some wait; a GPU takes
# batches of eight.
ONGOING_ON_CPUS, ONGOING_ON_GPU = 4.0, 16.0
# Ray Serve averages the load of a replica over this time, of which it learns at these intervals.
LOOK_BACK_SECONDS, REPORT_SECONDS = 3.0, 1.0

Stage = TypeVar("Stage", bound=StageConfig)


class NodeSize(NamedTuple):
    """The CPUs and GPUs of a node of the Ray cluster."""

    cpus: float
    gpus: float = 0.0


def list_nodes() -> list[NodeSize]:
    """List the nodes of the connected cluster on which replicas can run."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [NodeSize(found["CPU"], found.get("GPU", 0.0)) for found in resources if found.get("CPU")]


def plan_replicas(config: ServeConfig, nodes: Sequence[NodeSize]) -> ServeConfig:
    """Replace what the settings leave open (null) by numbers that suit the nodes of the cluster."""
    running = [name for name in ("fuser", "faces") if getattr(config, name).separate_deployment] + ["ingress"]
    # The generator runs in the part that is farthest from the client.
    with_gpu = running[0] if wants_gpu(config.runtime) else ""
    stages = {name: size_stage(getattr(config, name), nodes, len(running), name == with_gpu) for name in running}
    reserved = {name: (stage.cpus or 0.0) * count_always(stage) for name, stage in stages.items()}
    for name, stage in stages.items():
        others = sum(reserved.values()) - reserved[name]
        stages[name] = limit_replicas(stage, nodes, others)
    return config.model_copy(update=stages)


def size_stage(stage: Stage, nodes: Sequence[NodeSize], num_parts: int, wants_gpu: bool) -> Stage:
    """Choose the CPUs and GPUs of a replica: a GPU if it has a use for one, and up to four CPUs.

    A node without GPUs has room for two replicas of each part, or at least for one.
    """
    gpus = stage.gpus
    if gpus is None:
        gpus = 1.0 if wants_gpu and any(node.gpus for node in nodes) else 0.0
    cpus = stage.cpus
    if cpus is None:
        fitting = [node for node in nodes if node.gpus >= gpus] or [NodeSize(1.0)]
        cpus = min(share_cpus(node, gpus, num_parts) for node in fitting)
    return stage.model_copy(update={"cpus": cpus, "gpus": gpus})


def share_cpus(node: NodeSize, gpus: float, num_parts: int) -> float:
    """Return the CPUs of a node that a replica gets: those of its share of the GPUs, or enough for two of each part."""
    wide = node.cpus / (node.gpus / gpus if gpus else 2 * num_parts)
    if wide >= 1:
        return float(min(MAX_CPUS, math.floor(wide)))
    return min(1.0, math.floor(100 * node.cpus / num_parts) / 100)


def wants_gpu(runtime: RuntimeConfig) -> bool:
    """Tell whether models run on a GPU where there is one."""
    named = runtime.providers
    return runtime.engine != "openvino" and (named == "auto" or any(name in GPU_PROVIDERS for name in named))


def limit_replicas(stage: Stage, nodes: Sequence[NodeSize], reserved_cpus: float) -> Stage:
    """Choose the largest number of replicas: what the nodes hold besides the replicas of other parts."""
    if stage.num_replicas != "auto" or stage.max_replicas is not None:
        return stage
    on_cpus = [math.floor(node.cpus / stage.cpus) if stage.cpus else math.inf for node in nodes]
    on_gpus = [math.floor(node.gpus / stage.gpus) if stage.gpus else math.inf for node in nodes]
    room = sum(map(min, on_cpus, on_gpus))
    if stage.cpus:
        room = min(room, sum(on_cpus) - math.ceil(reserved_cpus / stage.cpus))
    if math.isinf(room):  # It reserves nothing.
        room = len(nodes)
    return stage.model_copy(update={"max_replicas": max(1, stage.min_replicas, int(room))})


def count_always(stage: StageConfig) -> int:
    """Return the number of replicas that always run."""
    return stage.min_replicas if stage.num_replicas == "auto" else stage.num_replicas


def scaling_options(stage: StageConfig) -> dict[str, Any]:
    """Return what Ray Serve wants to know of a planned part: its number of replicas, and their hardware."""
    hardware = {"ray_actor_options": {"num_cpus": stage.cpus, "num_gpus": stage.gpus}}
    if stage.num_replicas != "auto":
        return {**hardware, "num_replicas": stage.num_replicas}
    ongoing = stage.target_ongoing_requests or (ONGOING_ON_GPU if stage.gpus else ONGOING_ON_CPUS)
    autoscaling = {
        "min_replicas": stage.min_replicas,
        "max_replicas": stage.max_replicas,
        # A service starts with a replica, so that a model that cannot be loaded is known at once.
        "initial_replicas": max(1, stage.min_replicas),
        "target_ongoing_requests": ongoing,
        "look_back_period_s": LOOK_BACK_SECONDS,
        "metrics_interval_s": REPORT_SECONDS,
        "upscale_delay_s": stage.upscale_delay_seconds,
        "downscale_delay_s": stage.downscale_delay_seconds,
    }
    return {**hardware, "autoscaling_config": autoscaling}


def use_reserved_gpus(runtime: RuntimeConfig) -> RuntimeConfig:
    """Return the settings for the GPUs that Ray reserved for this process: without one, models run on the CPU.

    Ray hides no GPU from a process that reserved none (RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO).
    """
    reserved = ray.get_runtime_context().get_assigned_resources().get("GPU")
    if runtime.providers == "auto" and not reserved and has_nvidia_device():
        return runtime.model_copy(update={"providers": (CPU,), "precision": "auto"})
    return runtime


def count_threads() -> int:
    """Count the threads of this replica: for its reserved CPUs, but not for fewer than the first four of the machine,
    because replicas share CPUs that are idle.
    """
    reserved: float = ray.get_runtime_context().get_assigned_resources().get("CPU", 0.0)
    return max(math.ceil(reserved), min(MAX_CPUS, count_cpus()))


def enter_replica(config: ServeConfig) -> ServeConfig:
    """Prepare the process of a replica; the constructor of each part calls this first.

    Returns the settings for what Ray reserved: without a GPU, models run on the CPU.
    """
    return_freed_memory()
    keep_replica_on_loopback()
    threads = count_threads()
    runtime, faces = use_reserved_gpus(config.runtime), config.faces
    on_gpu = select_providers(runtime)[0] in GPU_PROVIDERS
    if runtime.threads is None and not on_gpu:
        runtime = runtime.model_copy(update={"threads": threads})
    if faces.threads is None and on_gpu:
        # While a thread waits for a GPU, another one has its core.
        faces = faces.model_copy(update={"threads": threads + 1})
    return config.model_copy(update={"runtime": runtime, "faces": faces})
