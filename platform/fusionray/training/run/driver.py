"""Start the training workers on Ray Train, restart them after failures, and stop them."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fusionray.background import run_in_background
from fusionray.checkpoint.info import is_owner, newest_checkpoint, read_info, take_fencing_token
from fusionray.errors import ClusterUnavailable, RunStopped, TrainingFailed
from fusionray.ray_cluster.connection import decide_use_gpu, require_cluster, require_cpus
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.training.config import BudgetConfig, WorkersConfig
from fusionray.training.faults.elastic import RESIZE_SECONDS, refresh_cluster_resources
from fusionray.training.faults.failures import FailureReporter, root_cause
from fusionray.training.faults.preemption import catch_preemption
from fusionray.training.faults.warm_spares import WORKER_ENVIRONMENT, WarmSpares
from fusionray.training.run.task import WorkerTask

# Blocks of 32 MiB (data/ray_data_reader.py) of four tasks, being made and waiting to be taken.
DECODED_STORE_BYTES = 8 * 32 * 2**20


def run_workers(task: WorkerTask, progress: ProgressHandle | None) -> None:
    """Train until the budget is used up or a stop is requested; both end with a checkpoint.

    With `progress`, its `request_stop` stops the run. If it is None, this function draws a progress bar, and SIGTERM
    stops the run, provided that the caller is the main thread: other threads cannot catch signals.

    Raises: RunStopped after a SIGTERM that this function caught, TrainingFailed, ClusterUnavailable.
    """
    require_cluster()
    if progress is not None:
        fit_with_restarts(task, progress)
        return
    config = task.config
    progress = ProgressHandle()
    try:
        with (
            catch_preemption() as preempted,
            progress.progress_bar(f"train {config.run.name}", config.budget.images, "img", stop_event=preempted),
        ):
            fit_with_restarts(task, progress)
    finally:
        progress.close()
    if preempted.is_set() and not is_complete(task.run_folder, config.budget):
        raise RunStopped(
            f"run '{config.run.name}' stopped after SIGTERM, with a checkpoint after "
            f"{images_at_newest_checkpoint(task.run_folder)} images; the same command resumes it"
        )


def fit_with_restarts(task: WorkerTask, progress: ProgressHandle) -> None:
    """Run the workers; if Ray Train gives up, but a newer checkpoint was saved since the last start, start them again.

    Ray Train counts the failures since the start, and gives up at failure `workers.max_failures` + 1 or if its
    controller dies. Without restarts, a long run would end at its fourth failure, even if each lost only a few steps.
    With `workers.max_failures` = 0, there are no restarts.

    Raises: TrainingFailed, ClusterUnavailable.
    """
    while True:
        before = images_at_newest_checkpoint(task.run_folder)
        try:
            fit_once(task, progress)
            return
        except TrainingFailed as error:
            after = images_at_newest_checkpoint(task.run_folder)
            if after <= before or not task.config.workers.max_failures:
                raise
            if not is_owner(task.run_folder, task.fencing_token):
                # Another start has taken over, and it saved what is newer.
                raise
            progress.log(f"train {task.config.run.name}: {error}; restarting the workers after {after} images")
            # Workers of the failed controller may still run; the new token stops them from publishing checkpoints.
            task = replace(task, fencing_token=take_fencing_token(task.run_folder))


def fit_once(task: WorkerTask, progress: ProgressHandle) -> None:
    """Run the workers with one call of Ray Train's `fit`, which restarts them after each failure.

    Raises: TrainingFailed at failure `workers.max_failures` + 1, or if Ray Train's controller dies; ClusterUnavailable.
    """
    import ray.exceptions
    import ray.train

    from fusionray.training.faults.leftover_workers import end_leftover_workers
    from fusionray.training.run.light_trainer import LightTrainer, ProcessGroupConfig

    end_leftover_workers(task.run_folder)
    config = task.config
    workers = config.workers
    use_gpu = decide_use_gpu(workers)
    if workers.min_workers is None:
        require_cpus(workers.num_workers, workers.cpus_per_worker)
    else:
        require_cpus(workers.min_workers, workers.cpus_per_worker, setting="workers.min_workers")
    if config.data.decode == "nodes":
        require_decoding_cpus(workers)
        if small := describe_small_stores(ray.nodes()):
            warnings.warn(small, RuntimeWarning, stacklevel=2)
    logging.getLogger("ray.train").setLevel(logging.ERROR)

    def train_loop_per_worker() -> None:
        # In a closure, only the workers unpickle the task; in `train_loop_config`, the controller would too. Only they
        # import the engine.
        from fusionray.training.run.entry import train_worker

        train_worker(task, progress)

    trainer = LightTrainer(
        train_loop_per_worker,
        backend_config=ProcessGroupConfig("nccl" if use_gpu else "gloo"),
        scaling_config=build_scaling_config(workers, use_gpu=use_gpu),
        run_config=ray.train.RunConfig(
            name=config.run.name,
            storage_path=config.run.output,
            failure_config=ray.train.FailureConfig(max_failures=workers.max_failures),
            callbacks=[FailureReporter(progress, config.run.name), *([WarmSpares()] if workers.warm_spares else [])],
            worker_runtime_env=WORKER_ENVIRONMENT,
        ),
    )
    refresh = run_in_background(refresh_cluster_resources, "refresh_cluster_resources")
    with refresh if is_elastic(workers) else contextlib.nullcontext():
        try:
            trainer.fit()
        except (ray.train.TrainingFailedError, ray.exceptions.RayError) as error:
            raise TrainingFailed(f"run '{config.run.name}': {root_cause(error)}") from error


def require_decoding_cpus(workers: WorkersConfig) -> None:
    """Check that the cluster has a CPU for the tasks that decode, beside those of the workers.

    Raises: ClusterUnavailable.
    """
    import ray

    taken = (workers.min_workers or workers.num_workers) * workers.cpus_per_worker
    total = float(ray.cluster_resources().get("CPU", 0.0))
    if total - taken < 1:
        raise ClusterUnavailable(
            f"data.decode=nodes needs a CPU beside the {taken:g} of the workers, and the cluster has {total:g}; add "
            "nodes, lower workers.cpus_per_worker, or take data.decode=worker"
        )


def describe_small_stores(nodes: Sequence[Mapping[str, Any]]) -> str | None:
    """Say that object stores have no room for decoded crops on their way, if so; `nodes`: as `ray.nodes` lists them.

    With stores of 100 MB, `data.decode=nodes` gave 280 rows/s where it gives 1,560: tasks wait for each other's room.
    """
    stores = [node["Resources"].get("object_store_memory", 0.0) for node in nodes if node["Alive"]]
    smallest = min(stores, default=DECODED_STORE_BYTES)
    if smallest >= DECODED_STORE_BYTES:
        return None
    return (
        f"data.decode=nodes: the smallest object store of the nodes has {smallest / 2**20:.0f} MiB, and crops on their "
        f"way take {DECODED_STORE_BYTES / 2**20:.0f}; give Ray more (ray start --object-store-memory), or decoding is "
        "slow"
    )


def build_scaling_config(workers: WorkersConfig, *, use_gpu: bool) -> Any:
    """Build Ray Train's scaling config: the number of workers and the resources of each."""
    import ray.train

    num_workers = (workers.min_workers, workers.num_workers) if is_elastic(workers) else workers.num_workers
    return ray.train.ScalingConfig(
        num_workers=num_workers,
        use_gpu=use_gpu,
        resources_per_worker={"CPU": workers.cpus_per_worker, **({"GPU": 1} if use_gpu else {})},
        **({"elastic_resize_monitor_interval_s": RESIZE_SECONDS} if is_elastic(workers) else {}),
    )


def is_elastic(workers: WorkersConfig) -> bool:
    """Return whether a run may continue with fewer workers."""
    return workers.min_workers is not None and workers.min_workers < workers.num_workers


def is_complete(run_folder: str, budget: BudgetConfig) -> bool:
    """Return whether a run has used up its budget (images or seconds), by its newest checkpoint.

    False if there is no checkpoint.

    Raises: CheckpointMissing if there are checkpoints but none is usable.
    """
    newest = newest_checkpoint(run_folder)
    if newest is None:
        return False
    info = read_info(newest)
    return info.images_seen >= budget.images or (budget.max_seconds is not None and info.seconds >= budget.max_seconds)


def images_at_newest_checkpoint(run_folder: str) -> int:
    """Return the number of images seen at the newest checkpoint of a run; -1 if there is none.

    Raises: as `is_complete`.
    """
    newest = newest_checkpoint(run_folder)
    return -1 if newest is None else read_info(newest).images_seen
