"""The parts that need a Ray cluster: the training loop as users run it, and the loader that feeds it."""

from __future__ import annotations

import json
import logging
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import ray.exceptions
import ray.train
import ray.train.torch
import torch

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import Pace, divide
from fusionray.benchmarks.setup import BenchSetup, TrainBenchConfig, build_setup
from fusionray.benchmarks.train.blocks import BlockTimer
from fusionray.benchmarks.train.loader import measure_loader
from fusionray.benchmarks.train.object_storage import measure_object_storage
from fusionray.data.prepare import PrepareConfig, prepare
from fusionray.data.ray_data_reader import OBJECT_STORAGE_TASKS, RayDataReader
from fusionray.data.shards import read_manifest
from fusionray.errors import TrainingFailed
from fusionray.hardware.affinity import bind_worker
from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.storage import filesystem as storage
from fusionray.tracking.runs import close_run, metric_history, open_run
from fusionray.tracking.store import tracking_uri
from fusionray.training.dry_run.dry_run import build_dependencies
from fusionray.training.faults.failures import root_cause
from fusionray.training.run.entry import open_reader
from fusionray.training.run.light_trainer import LightTrainer, ProcessGroupConfig
from fusionray.training.run.task import WorkerTask
from fusionray.training.run.worker import Worker
from fusionray.training.timing.report import OTHER, PARTS

RUN = {"name": "bench-loop"}
FOUND_NAME = "blocks.json"
NEVER = 10**12


@dataclass(frozen=True)
class LoopTask:
    """Arguments of the measured worker: the task of the run, the setup of the bare loop, the pace."""

    task: WorkerTask
    setup: BenchSetup
    pace: Pace


def prepare_shards(bench: TrainBenchConfig) -> str:
    """Prepare the synthetic crops to stream; a second call reuses them."""
    folder = storage.join(bench.output, "shards")
    prepare(
        PrepareConfig(input=bench.world, output=folder, size=bench.data_size, landmarks="exact", contact_sheet=False)
    )
    return folder


def measure_loaders(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare our stream, read through Ray, with DataLoaders of as many processes."""
    del device, tick  # the loaders draw no bar
    cores = len(os.sched_getaffinity(0))
    shards = prepare_shards(bench)
    rates = measure_loader(
        shards, Pace(pace.rounds, bench.loader_batches, pace.until), reader=RayDataReader, workers=cores
    )
    stored = measure_object_storage(shards, Pace(pace.rounds, 1, pace.until))
    summary = ", ".join(f"{name} {statistics.median(values):.0f}" for name, values in rates.items())
    return Findings(
        values={
            "loader_vs_pillow": divide(rates["ours"], rates["dataloader_pillow"]),
            "loader_vs_best": divide(rates["ours"], rates["dataloader_simplejpeg"]),
            "loader_object_storage": divide(stored["ray_data"], stored["one_by_one"]),
        },
        notes=[
            f"loaders: crops of {bench.data_size} px, {cores} threads or processes, images/s: {summary}",
            f"object storage: {OBJECT_STORAGE_TASKS} tasks at once, rows/s: "
            + ", ".join(f"{name} {statistics.median(values):.0f}" for name, values in stored.items()),
        ],
    )


def measure_loop(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare the Ray Train loop, streaming from shards, with a bare loop in the same process."""
    del device, tick  # the run draws its own bar
    shards = prepare_shards(bench)
    setup = build_loop_setup(bench, shards)
    batch = setup.config.engine.global_batch
    assert isinstance(batch, int)
    steps = setup.config.budget.log_every_images // batch
    with TemporaryDirectory(prefix="loop-", dir=Path(bench.output)) as folder:
        uri = tracking_uri(None, folder)
        run = open_run(uri, "bench", RUN["name"], {})
        manifest = read_manifest(shards)
        task = WorkerTask(
            config=setup.config,
            manifest=manifest,
            run_folder=storage.join(folder, RUN["name"]),
            labels=None,
            dependencies=build_dependencies(setup.config)[0],
            tracking_run=run,
            tracking_uri=uri,
            fencing_token="",
        )
        fit(LoopTask(task, setup, Pace(pace.rounds, steps, pace.until)), folder)
        found = json.loads((Path(task.run_folder) / FOUND_NAME).read_text())
        close_run(uri, run)
        # These are the entries that a user reads in the tracker. The first one includes the start of the stream.
        history = {
            key: [value for _, value in metric_history(uri, run, key)][1:]
            for key in ("share_data_wait", *(f"time_{part}_ms" for part in (*PARTS, OTHER)))
        }
    return Findings(
        values={
            "loop_efficiency": divide(found["bare"], found["real"]),
            "data_wait_share": history["share_data_wait"],
        },
        breakdowns={
            "Ray Train loop, shards": {part: statistics.median(history[f"time_{part}_ms"]) for part in (*PARTS, OTHER)}
        },
        notes=[
            f"loop: networks of {bench.engine_preset} at {bench.data_size} px, {batch} images a step, {steps} steps a "
            f"round, {found['threads']} threads; {steps * batch / statistics.median(found['real']):.1f} images/s"
        ],
    )


def build_loop_setup(bench: TrainBenchConfig, shards: str) -> BenchSetup:
    """Build the measured run: only steps, and one entry in the tracker a round."""
    cpu = torch.device("cpu")
    preset = build_setup(bench, bench.engine_preset, cpu).config
    batch = preset.engine.global_batch
    if not isinstance(batch, int):
        raise ValueError("train.engine.global_batch=auto: the loop is measured at a number of images")
    steps = bench.loop_steps or -(-preset.budget.log_every_images // batch)
    budget = {
        # One round more than is counted, because the first one is a warm-up.
        "images": (bench.rounds + 1) * steps * batch,
        "log_every_images": steps * batch,
        "max_seconds": None,
        "checkpoint_every_images": NEVER,
        "validate_every_images": NEVER,
    }
    return build_setup(
        bench,
        bench.engine_preset,
        cpu,
        run=RUN,
        data={"shards": shards, "size": bench.data_size, "validation_images": 0},
        recipe={"generator": {"size": bench.data_size}},
        engine={"batch_size": None},
        budget=budget,
        workers={"num_workers": 1, "device": "cpu" if bench.device == "cpu" else "auto"},
    )


def fit(task: LoopTask, folder: str) -> None:
    """Run the measured worker under Ray Train.

    Raises: TrainingFailed.
    """
    use_gpu = task.setup.config.workers.device != "cpu" and ray.cluster_resources().get("GPU", 0.0) >= 1
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    progress = ProgressHandle()
    trainer = LightTrainer(
        lambda: loop_worker(task, progress),
        backend_config=ProcessGroupConfig("nccl" if use_gpu else "gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=1, use_gpu=use_gpu),
        run_config=ray.train.RunConfig(name=RUN["name"], storage_path=folder),
    )
    with progress.progress_bar("bench loop", task.setup.config.budget.images, "img"):
        try:
            trainer.fit()
        except (ray.train.TrainingFailedError, ray.exceptions.RayError) as error:
            raise TrainingFailed(f"the measured run: {root_cause(error)}") from error
        finally:
            progress.close()


def loop_worker(loop_task: LoopTask, progress: ProgressHandle) -> None:
    """Run the worker of a training run with a timer; entry point of a Ray Train worker."""
    device = ray.train.torch.get_device()
    workers = loop_task.setup.config.workers
    bind_worker(0, 1, device, threads=workers.threads, bind=workers.bind)
    setup = BenchSetup(loop_task.setup.config, device)
    engine = setup.build_engine()
    worker = Worker(loop_task.task, engine, open_reader(loop_task.task), progress=progress)
    timer = BlockTimer(worker.profiler, engine, setup, loop_task.pace)
    # The loop calls its profiler at the very end of each step, so the timer can stop the unchanged loop there.
    worker.profiler = timer  # type: ignore[assignment]
    try:
        worker.run()
    finally:
        worker.close()
    found = {"real": timer.real, "bare": timer.bare, "threads": torch.get_num_threads()}
    storage.write_atomic(storage.join(loop_task.task.run_folder, FOUND_NAME), json.dumps(found).encode())
