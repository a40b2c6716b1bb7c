"""`fusionray bench recovery`: workers of a real run are killed at random moments; how soon it goes on, and where."""

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
from typing import Any

import torch
from pydantic import Field
from tqdm import tqdm

from fusionray.benchmarks.findings import Findings, load_keys
from fusionray.benchmarks.results import BenchResult, write_result
from fusionray.benchmarks.setup import TrainBenchConfig, build_setup
from fusionray.config import Section
from fusionray.data.prepare import PrepareConfig, prepare
from fusionray.data.reading import list_people
from fusionray.data.shards import read_manifest
from fusionray.environment import resolve_location
from fusionray.errors import ClusterUnavailable, TrainingFailed
from fusionray.hardware.processes import list_processes
from fusionray.storage import filesystem as storage
from fusionray.tracking import open_run, tracking_uri
from fusionray.training.dry_run.dry_run import build_dependencies

POLL_SECONDS = 0.02
# A run that has not stepped again by then never will.
GIVE_UP_SECONDS = 180.0
ENDLESS = 10**9


class RecoveryBenchConfig(Section):
    """What `fusionray bench recovery` kills, and how often."""

    output: str = Field(description="folder for figures.json, report.md, recovery.png, and the shards of the run")
    preset: str = Field("tiny-64", description="preset of the run, a face fusion; its encoder stays untrained")
    train: dict[str, Any] = Field({}, description="changes of the preset, by its own names: train.workers.standby=")
    world: str = Field("synthetic://people=60,images=8,size=128,seed=0", description="what the run learns from")
    num_workers: int = Field(2, ge=1, description="workers of the run")
    checkpoint_every_images: int = Field(320, ge=1, description="images between two checkpoints")
    kills: int = Field(10, ge=1, description="workers that are killed, one after another")
    pause_seconds: tuple[float, float] = Field((15.0, 30.0), description="shortest and longest time between two kills")
    seed: int = Field(0, ge=0, description="seed of who is killed when")


@dataclass(frozen=True)
class Recovery:
    """One kill: seconds to the next step, images that were computed again, share of successors that were in wait."""

    seconds: float
    images_repeated: int
    waited: float


def bench_recovery(config: RecoveryBenchConfig, *, address: str | None = None) -> BenchResult:
    """Train, kill, measure; `address` names a Ray cluster whose workers run on this machine, default: one of our own.

    Raises: ConfigInvalid, ClusterUnavailable if workers run elsewhere, TrainingFailed if the run does not go on.
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
            "successors_in_wait": [each.waited for each in recoveries],
        },
        notes=[
            f"{len(recoveries)} kills of one of {config.num_workers} workers of {config.preset}, "
            f"{config.pause_seconds[0]:g} to {config.pause_seconds[1]:g} s apart; seconds in order: "
            f"{', '.join(f'{value:.1f}' for value in seconds)}; median {statistics.median(seconds):.1f}"
        ],
    )
    return write_result(output, "recovery", load_keys("recovery"), findings)


def measure(config: RecoveryBenchConfig, folder: str) -> list[Recovery]:
    """Run the trainer in a thread, and kill its workers from here."""
    from fusionray.ray_cluster.progress import ProgressHandle
    from fusionray.training.run.worker_group import fit_on

    task = build_task(config, folder)
    board = ProgressHandle()
    with ThreadPoolExecutor(1, "train") as thread:
        running = thread.submit(fit_on, task, board)
        try:
            return Killer(config, board, running).run()
        finally:
            board.halt()
            running.exception()
            board.close()


def build_task(config: RecoveryBenchConfig, folder: str) -> Any:
    """Describe the run: the preset's networks and losses, an untrained encoder, no end."""
    from fusionray.training.run.task import WorkerTask

    shards = storage.join(config.output, "shards")
    bench = TrainBenchConfig(output=config.output, train=config.train)
    subject = build_setup(
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
    data = subject.config.data
    prepare(PrepareConfig(input=config.world, output=shards, size=data.size, landmarks="exact", contact_sheet=False))
    manifest = read_manifest(shards)
    uri = tracking_uri(None, folder)
    return WorkerTask(
        config=subject.config,
        manifest=manifest,
        run_folder=storage.join(folder, "recovery"),
        people=list_people(shards, manifest, "train"),
        dependencies=build_dependencies(subject.config)[0],
        tracking_run=open_run(uri, "bench", "recovery", {}),
        tracking_uri=uri,
        owner="",
    )


class Killer:
    """Kill workers of a run at random moments and wait for the next step after each."""

    def __init__(self, config: RecoveryBenchConfig, board: Any, running: Future[None]) -> None:
        import ray

        self.config = config
        self.board = board
        self.running = running
        self.random = random.Random(config.seed)  # noqa: S311 - moments, no secrets
        self.here = ray.get_runtime_context().get_node_id()

    def run(self) -> list[Recovery]:
        """Kill as often as is asked.

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
        """Kill a worker, and measure until the workers that take over have made a step."""
        standing = self.look()
        seats = standing.seats
        victim = seats[self.random.choice(sorted(seats))]
        if victim.node != self.here:
            raise ClusterUnavailable("bench recovery kills processes: it measures workers on this machine only")
        there = list_processes()
        started = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        began = self.wait_for_step(former={seat.pid for seat in seats.values()})
        seconds = time.monotonic() - started
        waited = [seat.pid in there for seat in self.look().seats.values()]
        return Recovery(seconds, max(0, standing.position - began), statistics.mean(waited))

    def wait_for_step(self, former: set[int]) -> int:
        """Wait until workers other than the former have made a step; return the images that they began with.

        Raises: TrainingFailed if that does not happen.
        """
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < deadline:
            standing = self.look()
            seats = list(standing.seats.values())
            arrived = len(seats) == self.config.num_workers and not former & {seat.pid for seat in seats}
            if arrived and standing.position > seats[0].position:
                return int(seats[0].position)
            time.sleep(POLL_SECONDS)
        raise TrainingFailed(f"no step within {GIVE_UP_SECONDS:g} s after a worker was killed; see the lines above")

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.5)

    def look(self) -> Any:
        """Look at the board and pass on what it has to say.

        Raises: what ended the run.
        """
        if self.running.done():
            self.running.result()
            raise TrainingFailed("the measured run ended before its time")
        standing = self.board.look()
        for line in standing.lines:
            tqdm.write(line, file=sys.stderr)
        return standing
