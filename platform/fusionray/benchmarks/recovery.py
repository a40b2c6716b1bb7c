"""`fusionray bench recovery`: kill workers of a real run at random times; measure when and where the run resumes."""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from pydantic import Field
from tqdm import tqdm

from fusionray.benchmarks.findings import Findings, load_keys
from fusionray.benchmarks.results import BenchResult, write_result
from fusionray.benchmarks.setup import TrainBenchConfig, build_setup
from fusionray.config import Section
from fusionray.data.prepare import PrepareConfig, prepare
from fusionray.data.shards import read_manifest
from fusionray.environment import resolve_location
from fusionray.errors import ClusterUnavailable, TrainingFailed
from fusionray.hardware.processes import list_processes
from fusionray.storage import filesystem as storage
from fusionray.tracking.runs import open_run
from fusionray.tracking.store import tracking_uri
from fusionray.training.dry_run.dry_run import build_dependencies

POLL_SECONDS = 0.02
# A run without a step after this time has failed.
GIVE_UP_SECONDS = 180.0
ENDLESS = 10**9


class RecoveryBenchConfig(Section):
    """Settings of `fusionray bench recovery`: the run, its kills, and the time between them."""

    listed_by: ClassVar[str] = "fusionray bench recovery --settings"

    output: str = Field(description="Folder for figures.json, report.html, report.md, and the shards of the run.")
    preset: str = Field("tiny-64", description="Face-fusion preset of the run; its encoder is not trained.")
    train: dict[str, Any] = Field(
        {}, description="Changes of the preset: train.KEY=VALUE, with the keys of `fusionray train --settings`."
    )
    world: str = Field(
        "synthetic://people=60,images=8,size=128,seed=0", description="Synthetic dataset that the run trains on."
    )
    num_workers: int = Field(2, ge=1, description="Workers of the run.")
    checkpoint_every_images: int = Field(320, ge=1, description="Images between two checkpoints.")
    kills: int = Field(10, ge=1, description="Workers that are killed, one after another.")
    pause_seconds: tuple[float, float] = Field((15.0, 30.0), description="Shortest and longest time between two kills.")
    seed: int = Field(0, ge=0, description="Seed that decides which worker is killed when.")


@dataclass(frozen=True)
class Recovery:
    """One kill: seconds to the next step, images that were computed again, share of new workers from warm spares."""

    seconds: float
    images_repeated: int
    spare_share: float


def bench_recovery(config: RecoveryBenchConfig, *, address: str | None = None) -> BenchResult:
    """Train, kill workers, measure. `address` names a Ray cluster with workers on this machine; default: a local one.

    Raises: ConfigInvalid, ClusterUnavailable if workers run elsewhere, TrainingFailed if the run does not resume.
    """
    from fusionray.ray_cluster.connection import cluster

    config = config.model_copy(update={"output": resolve_location(config.output)})
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    with cluster(address), TemporaryDirectory(prefix="recovery-", dir=output) as folder:
        recoveries = measure(config, folder)
    seconds = [each.seconds for each in recoveries]
    images = [float(each.images_repeated) for each in recoveries]
    findings = Findings(
        values={
            "recovery_seconds_median": seconds,
            "recovery_seconds_worst": [max(seconds)],
            "images_repeated_worst": [max(images)],
            "intervals_repeated_worst": [max(images) / config.checkpoint_every_images],
            "successors_in_wait": [each.spare_share for each in recoveries],
        },
        notes=[
            f"{len(recoveries)} kills of one of {config.num_workers} workers of {config.preset}, "
            f"{config.pause_seconds[0]:g} to {config.pause_seconds[1]:g} s apart; seconds in order: "
            f"{', '.join(f'{value:.1f}' for value in seconds)}; median {statistics.median(seconds):.1f}"
        ],
    )
    return write_result(output, "recovery", load_keys("recovery"), findings)


def measure(config: RecoveryBenchConfig, folder: str) -> list[Recovery]:
    """Run the trainer in a thread, and kill its workers from this one."""
    from fusionray.ray_cluster.connection import require_cluster
    from fusionray.ray_cluster.progress import ProgressHandle
    from fusionray.training.run.driver import fit_with_restarts

    task = build_task(config, folder)
    require_cluster()
    progress = ProgressHandle()
    with ThreadPoolExecutor(1, "train") as thread:
        running = thread.submit(fit_with_restarts, task, progress)
        try:
            return WorkerKiller(config, progress, running).run()
        finally:
            progress.request_stop()
            running.exception()
            progress.close()


def build_task(config: RecoveryBenchConfig, folder: str) -> Any:
    """Build the task of the run: the preset's networks and losses, an untrained encoder, an endless budget."""
    from fusionray.training.run.task import WorkerTask

    shards = storage.join(config.output, "shards")
    bench = TrainBenchConfig(output=config.output, train=config.train)
    setup = build_setup(
        bench,
        config.preset,
        torch.device("cpu"),
        run={"name": "recovery", "output": folder},
        data={"shards": shards, "validation_images": 0},
        budget={
            "images": ENDLESS,
            "max_seconds": None,
            "checkpoint_every_images": config.checkpoint_every_images,
            "validate_every_images": ENDLESS,
        },
        workers={"num_workers": config.num_workers, "cpus_per_worker": 0.5, "max_failures": config.kills + 1},
    )
    data = setup.config.data
    prepare(PrepareConfig(input=config.world, output=shards, size=data.size, landmarks="exact", contact_sheet=False))
    manifest = read_manifest(shards)
    uri = tracking_uri(None, folder)
    return WorkerTask(
        config=setup.config,
        manifest=manifest,
        run_folder=storage.join(folder, "recovery"),
        labels=None,
        dependencies=build_dependencies(setup.config)[0],
        tracking_run=open_run(uri, "bench", "recovery", {}),
        tracking_uri=uri,
        fencing_token="",
    )


class WorkerKiller:
    """Kill workers of a run at random times, and wait for the next step after each kill."""

    def __init__(self, config: RecoveryBenchConfig, progress: Any, running: Future[None]) -> None:
        import ray

        self.config = config
        self.progress = progress
        self.running = running
        self.random = random.Random(config.seed)  # noqa: S311 - not a secret
        self.here = ray.get_runtime_context().get_node_id()

    def run(self) -> list[Recovery]:
        """Kill workers as often as configured.

        Raises: TrainingFailed, ClusterUnavailable.
        """
        found: list[Recovery] = []
        self.wait_for_step(former=set())
        with tqdm(total=self.config.kills, desc="bench recovery", unit="kill") as bar:
            while len(found) < self.config.kills:
                self.pause(self.random.uniform(*self.config.pause_seconds))
                found.append(self.kill())
                bar.update()
                bar.set_postfix({"last": f"{found[-1].seconds:.1f} s"})
        return found

    def kill(self) -> Recovery:
        """Kill a worker, and wait until its successors have taken a step."""
        state = self.read()
        workers = state.workers
        victim = workers[self.random.choice(sorted(workers))]
        if victim.node != self.here:
            raise ClusterUnavailable("bench recovery kills processes, so all workers must run on this machine")
        before = list_processes()
        started = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        completed_at_start = self.wait_for_step(former={worker.pid for worker in workers.values()})
        seconds = time.monotonic() - started
        spares = [worker.pid in before for worker in self.read().workers.values()]
        return Recovery(seconds, max(0, state.completed - completed_at_start), statistics.mean(spares))

    def wait_for_step(self, former: set[int]) -> int:
        """Wait until workers other than the former have taken a step; return the images they started from.

        Raises: TrainingFailed if that takes too long.
        """
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline:
            state = self.read()
            workers = list(state.workers.values())
            started = len(workers) == self.config.num_workers and not former & {worker.pid for worker in workers}
            if started and state.completed > workers[0].completed:
                return int(workers[0].completed)
            time.sleep(POLL_SECONDS)
        raise TrainingFailed(f"no step within {GIVE_UP_SECONDS:g} s after a worker was killed; see the lines above")

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read()
            time.sleep(0.5)

    def read(self) -> Any:
        """Read the progress of the run and print its messages.

        Raises: the error that ended the run.
        """
        if self.running.done():
            self.running.result()
            raise TrainingFailed("the measured run ended too early")
        state = self.progress.read()
        for line in state.lines:
            tqdm.write(line, file=sys.stderr)
        return state
