"""Run the workers of a run under Ray Train: start them, restart them after failures, stop them."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import Any

from fusionray.background import run_in_background
from fusionray.checkpoint.info import newest_checkpoint, read_info, take_fencing_token
from fusionray.errors import ClusterUnavailable, RunStopped, TrainingFailed
from fusionray.ray_cluster.connection import require_cpus
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.training.config import BudgetConfig, TrainConfig, WorkersConfig
from fusionray.training.faults.elastic import RESIZE_SECONDS, keep_counting
from fusionray.training.faults.failures import FailureReporter, root_cause
from fusionray.training.faults.preemption import catch_preemption
from fusionray.training.faults.warm_spares import WORKER_ENVIRONMENT, WarmSpares
from fusionray.training.run.task import WorkerTask


def run_workers(task: WorkerTask, progress: ProgressHandle | None) -> None:
    """Train until the budget is used up, or until `progress` or a SIGTERM requests a stop; both end with a checkpoint.

    If `progress` is None, this function draws a progress bar.

    Raises: RunStopped after a SIGTERM, TrainingFailed, ClusterUnavailable.
    """
    if progress is not None:
        fit_on(task, progress)
        return
    config = task.config
    progress = ProgressHandle()
    try:
        with (
            catch_preemption() as preempted,
            progress.shown(f"train {config.run.name}", config.budget.images, "img", ending=preempted),
        ):
            fit_on(task, progress)
    finally:
        progress.close()
    if preempted.is_set() and not is_complete(task.run_folder, config.budget):
        raise RunStopped(
            f"run '{config.run.name}' stopped after SIGTERM, with a checkpoint after "
            f"{count_images(task.run_folder)} images; the same command resumes it"
        )


def fit_on(task: WorkerTask, progress: ProgressHandle) -> None:
    """Run the workers; if they fail for good but have saved another checkpoint, start them again.

    Ray Train counts failures over a whole run, and fails with its controller: a long run would end at the fourth
    failure in a week. Here, a run fails only if it makes no progress.

    Raises: TrainingFailed, ClusterUnavailable.
    """
    while True:
        before = count_images(task.run_folder)
        try:
            fit(task, progress)
            return
        except TrainingFailed as error:
            after = count_images(task.run_folder)
            if after <= before or not task.config.workers.max_failures:
                raise
            progress.log(f"train {task.config.run.name}: {error}; restarting the workers after {after} images")
            # Workers of the failed controller may still run; the new token stops them from publishing checkpoints.
            task = replace(task, fencing_token=take_fencing_token(task.run_folder))


def fit(task: WorkerTask, progress: ProgressHandle) -> None:
    """Run the workers under Ray Train once.

    Raises: TrainingFailed if they fail more often than `workers.max_failures`, ClusterUnavailable.
    """
    import ray.exceptions
    import ray.train

    from fusionray.training.run.light_trainer import LightTrainer, ProcessGroupConfig

    config = task.config
    workers = config.workers
    use_gpu = choose_gpu(config)
    require_cpus(workers.min_workers or workers.num_workers, workers.cpus_per_worker)
    logging.getLogger("ray.train").setLevel(logging.ERROR)

    def train_here() -> None:
        # In a closure, only the workers unpickle the task; in `train_loop_config`, the controller would too. Only they
        # import the engine.
        from fusionray.training.run.worker import train_worker

        train_worker(task, progress)

    trainer = LightTrainer(
        train_here,
        backend_config=ProcessGroupConfig("nccl" if use_gpu else "gloo"),
        scaling_config=scale(workers, use_gpu=use_gpu),
        run_config=ray.train.RunConfig(
            name=config.run.name,
            storage_path=config.run.output,
            failure_config=ray.train.FailureConfig(max_failures=workers.max_failures),
            callbacks=[FailureReporter(progress, config.run.name), *([WarmSpares()] if workers.warm_spares else [])],
            worker_runtime_env=WORKER_ENVIRONMENT,
        ),
    )
    with run_in_background(keep_counting, "count-nodes") if is_elastic(workers) else contextlib.nullcontext():
        try:
            trainer.fit()
        except (ray.train.TrainingFailedError, ray.exceptions.RayError) as error:
            raise TrainingFailed(f"run '{config.run.name}': {root_cause(error)}") from error


def scale(workers: WorkersConfig, *, use_gpu: bool) -> Any:
    """Return Ray Train's scaling config: the number of workers and the resources of each."""
    import ray.train

    number = (workers.min_workers, workers.num_workers) if is_elastic(workers) else workers.num_workers
    return ray.train.ScalingConfig(
        num_workers=number,
        use_gpu=use_gpu,
        resources_per_worker={"CPU": workers.cpus_per_worker, **({"GPU": 1} if use_gpu else {})},
        **({"elastic_resize_monitor_interval_s": RESIZE_SECONDS} if is_elastic(workers) else {}),
    )


def is_elastic(workers: WorkersConfig) -> bool:
    """Return whether a run may continue with fewer workers."""
    return workers.min_workers is not None and workers.min_workers < workers.num_workers


def choose_gpu(config: TrainConfig) -> bool:
    """Return whether each worker gets a GPU.

    Raises: ClusterUnavailable if `workers.device` is cuda and there are not enough GPUs.
    """
    import ray

    gpus = float(ray.cluster_resources().get("GPU", 0.0))
    wanted = config.workers.min_workers or config.workers.num_workers
    if config.workers.device == "cuda" and gpus < wanted:
        raise ClusterUnavailable(
            f"workers.device=cuda needs {wanted} GPUs, but the cluster has {gpus:g}; use fewer workers, or auto"
        )
    return config.workers.device != "cpu" and gpus >= wanted


def is_complete(run_folder: str, budget: BudgetConfig) -> bool:
    """Return whether the newest checkpoint of a run has used up the budget.

    Raises: CheckpointMissing if there are checkpoints but none is usable.
    """
    newest = newest_checkpoint(run_folder)
    if newest is None:
        return False
    info = read_info(newest)
    return info.images_seen >= budget.images or (budget.max_seconds is not None and info.seconds >= budget.max_seconds)


def count_images(run_folder: str) -> int:
    """Return the images seen at the newest checkpoint; -1 if there is none.

    Raises: as `is_complete`.
    """
    newest = newest_checkpoint(run_folder)
    return -1 if newest is None else read_info(newest).images_seen
