"""Entry point of a Ray Train worker: one rank on one device, bound to its share of the cores."""

from __future__ import annotations

from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from fusionray.checkpoint.info import newest_checkpoint
from fusionray.checkpoint.models import start_from
from fusionray.data.ray_data_reader import DECODE_TASKS, OBJECT_STORAGE_TASKS, RayDataReader
from fusionray.data.shard_files import list_files
from fusionray.data.shard_readers import CorruptionTracker
from fusionray.hardware.affinity import bind_worker, gpu_address
from fusionray.hardware.profiles import describe_profile, detect_profile
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.recipes.registry import build_recipe
from fusionray.training.config import DataConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.run.task import WorkerTask
from fusionray.training.run.worker import Worker


def train_worker(task: WorkerTask, progress: ProgressHandle) -> None:
    """Entry point of a Ray Train worker: build the engine, resume, and train until the budget ends or a stop request.

    Raises: any FusionRayError of data, checkpoints or training; Ray Train then restarts the workers or fails the run.
    """
    config = task.config
    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    num_local = context.get_local_world_size()
    reader = open_reader(task)
    placement = bind_worker(
        context.get_local_rank(),
        num_local,
        device,
        threads=config.workers.threads,
        bind=config.workers.bind,
        peers=gather_peers(device, context.get_node_rank()),
    )
    recipe = build_recipe(config, task.dataset_info, task.dependencies)
    # A checkpoint of this run replaces all of it, and what it began from may be gone by then.
    if config.run.start_from is not None and newest_checkpoint(task.run_folder) is None:
        start_from(recipe, config.run.start_from, config.data.size)
    profile = detect_profile(device)
    engine = Engine(
        recipe,
        config.engine,
        total_images=config.budget.images,
        device=device,
        seed=config.run.seed,
        profile=profile,
        num_local=num_local,
    )
    worker = Worker(task, engine, reader, progress=progress)
    try:
        worker.resume()
        worker.fit_batch()
        if worker.rank == 0:
            used = profile.model_copy(update=engine.choices())
            worker.logger.log_line(f"{describe_profile(used, device)}; worker 0 on {placement.reason}")
            worker.logger.log_line(engine.describe())
        worker.run()
    finally:
        worker.close()


def open_reader(task: WorkerTask) -> RayDataReader:
    """Open the reader of the training split; its processes start when it has read the first window."""
    config, data = task.config, task.config.data
    regions = config.family.needs_regions(config.recipe, synthetic=task.manifest.synthetic)
    return RayDataReader(
        list_files(data.shards, task.manifest, "train", with_regions=regions),
        CorruptionTracker(data.max_damaged_files),
        timeout_seconds=data.timeout_seconds,
        # Training begins with the first window, while Ray Data starts to read the next one.
        local_rows=data.shuffle_buffer_rows,
        tasks_at_once=data.read_tasks or default_read_tasks(data),
        decode_size=data.size if data.decode == "nodes" else None,
    )


def default_read_tasks(data: DataConfig) -> int:
    """Return how many read tasks of a worker run at once, if the config does not say.

    One process reads a local disk faster than a worker trains. Requests to an object store wait, so more are made.
    """
    if data.decode == "nodes":
        return DECODE_TASKS
    return OBJECT_STORAGE_TASKS if "://" in data.shards else 1


def gather_peers(device: torch.device, node_rank: int) -> list[str | None] | None:
    """Gather the PCI addresses of the GPUs of all workers on this node, in rank order, for the binding of CPU cores.

    An address is None if it is unknown. Returns None on the CPU or without a process group. All ranks call it.
    """
    if device.type != "cuda" or not dist.is_initialized():
        return None
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (node_rank, gpu_address(device)))
    return [address for node, address in everyone if node == node_rank]
