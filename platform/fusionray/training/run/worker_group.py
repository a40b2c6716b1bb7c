"""The workers of a run under Ray Train: started, restarted where they fail, told to end."""

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
from fusionray.training.run.worker import train_worker


def run_workers(task: WorkerTask, board: ProgressHandle | None) -> None:
    """Train until the budget is used up, or until `board` or a SIGTERM says halt; a checkpoint is there in any case.

    Without a board of the caller's a bar is drawn here.

    Raises: RunStopped after a SIGTERM, TrainingFailed, ClusterUnavailable.
    """
    if board is not None:
        fit_on(task, board)
        return
    config = task.config
    board = ProgressHandle()
    try:
        with (
            catch_preemption() as notice,
            board.shown(f"train {config.run.name}", config.budget.images, "img", ending=notice),
        ):
            fit_on(task, board)
    finally:
        board.close()
    if notice.is_set() and not is_complete(task.run_folder, config.budget):
        raise RunStopped(
            f"run '{config.run.name}' was told to end (SIGTERM) and did, with a checkpoint after "
            f"{count_images(task.run_folder)} images; the same command goes on"
        )


def fit_on(task: WorkerTask, board: ProgressHandle) -> None:
    """Run the workers; where they fail for good, but not before another checkpoint was made, start them anew.

    Ray Train counts failures over a whole run, and dies with its controller: a long run would end by the third fault in
    a week. What counts here is whether the run gets on.

    Raises: TrainingFailed, ClusterUnavailable.
    """
    while True:
        before = count_images(task.run_folder)
        try:
            fit(task, board)
            return
        except TrainingFailed as error:
            after = count_images(task.run_folder)
            if after <= before or not task.config.workers.max_failures:
                raise
            board.log(f"train {task.config.run.name}: {error}; workers start anew after {after} images")
            # Workers that a killed controller left behind must not publish any more.
            task = replace(task, owner=take_fencing_token(task.run_folder))


def fit(task: WorkerTask, board: ProgressHandle) -> None:
    """Run the workers under Ray Train once.

    Raises: TrainingFailed if they fail more often than is allowed, ClusterUnavailable.
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
        # Through a closure the task reaches the workers alone: in `train_loop_config` the controller unpickles it too.
        train_worker(task, board)

    trainer = LightTrainer(
        train_here,
        backend_config=ProcessGroupConfig("nccl" if use_gpu else "gloo"),
        scaling_config=scale(workers, use_gpu=use_gpu),
        run_config=ray.train.RunConfig(
            name=config.run.name,
            storage_path=config.run.output,
            failure_config=ray.train.FailureConfig(max_failures=workers.max_failures),
            callbacks=[FailureReporter(board, config.run.name), *([WarmSpares()] if workers.standby else [])],
            worker_runtime_env=WORKER_ENVIRONMENT,
        ),
    )
    with run_in_background(keep_counting, "count-nodes") if is_elastic(workers) else contextlib.nullcontext():
        try:
            trainer.fit()
        except (ray.train.TrainingFailedError, ray.exceptions.RayError) as error:
            raise TrainingFailed(f"run '{config.run.name}': {root_cause(error)}") from error


def scale(workers: WorkersConfig, *, use_gpu: bool) -> Any:
    """Say to Ray Train how many workers there may be, and what each needs."""
    import ray.train

    number = (workers.min_workers, workers.num_workers) if is_elastic(workers) else workers.num_workers
    return ray.train.ScalingConfig(
        num_workers=number,
        use_gpu=use_gpu,
        resources_per_worker={"CPU": workers.cpus_per_worker, **({"GPU": 1} if use_gpu else {})},
        **({"elastic_resize_monitor_interval_s": RESIZE_SECONDS} if is_elastic(workers) else {}),
    )


def is_elastic(workers: WorkersConfig) -> bool:
    """Tell whether a run may go on with fewer workers."""
    return workers.min_workers is not None and workers.min_workers < workers.num_workers


def choose_gpu(config: TrainConfig) -> bool:
    """Decide whether workers get a GPU each.

    Raises: ClusterUnavailable if CUDA was asked for and there are not enough GPUs.
    """
    import ray

    gpus = float(ray.cluster_resources().get("GPU", 0.0))
    wanted = config.workers.min_workers or config.workers.num_workers
    if config.workers.device == "cuda" and gpus < wanted:
        raise ClusterUnavailable(f"workers.device=cuda wants {wanted} GPUs and the cluster has {gpus:g}")
    return config.workers.device != "cpu" and gpus >= wanted


def is_complete(run_folder: str, budget: BudgetConfig) -> bool:
    """Tell whether the newest checkpoint of a run has used up the budget.

    Raises: CheckpointMissing if there are checkpoints and none of them can be used.
    """
    newest = newest_checkpoint(run_folder)
    if newest is None:
        return False
    info = read_info(newest)
    return info.images_seen >= budget.images or (budget.max_seconds is not None and info.seconds >= budget.max_seconds)


def count_images(run_folder: str) -> int:
    """Count the images of the newest checkpoint; -1 before the first.

    Raises: as `is_complete`.
    """
    newest = newest_checkpoint(run_folder)
    return -1 if newest is None else read_info(newest).images_seen
