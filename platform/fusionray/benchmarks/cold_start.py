"""`fusionray bench start`: how long a user waits for the first step of a training and the first answer of a service."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from pydantic import Field
from tqdm import tqdm

from fusionray.benchmarks.findings import Findings, load_keys
from fusionray.benchmarks.results import BenchResult, write_result
from fusionray.benchmarks.serve.inputs import draw_person, find_bundle, write_form
from fusionray.benchmarks.serve.servers import ray_folder, start_service
from fusionray.config import Section
from fusionray.data.prepare import PrepareConfig, prepare
from fusionray.environment import resolve_location
from fusionray.errors import TrainingFailed
from fusionray.hardware.processes import add_descendants, list_processes, measure_cpu
from fusionray.ray_cluster.connection import cluster

COMMAND = (sys.executable, "-m", "fusionray.cli")
PICTURE_PIXELS = 512
POLL_SECONDS = 0.05
START_SECONDS = 300.0
STOP_SECONDS = 60.0
# A progress bar of a training, `train NAME:  3%|... | 64/2000 [...]`, with the images that were learned from.
BAR = re.compile(r"train [^\r\n]*?\|\s*(\d+)/\d+ \[")


class StartBenchConfig(Section):
    """Settings of `fusionray bench start`: what it starts, and how often."""

    listed_by: ClassVar[str] = "fusionray bench start --settings"

    output: str = Field(description="Folder for figures.json, report.html, report.md and the bundle.")
    rounds: int = Field(3, ge=1, description="Starts of each command; medians are reported.")
    preset: str = Field("identity-small", description="Preset whose training is started.")
    num_workers: int = Field(2, ge=1, description="Workers of the training.")
    world: str = Field("synthetic://people=24,images=8", description="Synthetic dataset that the training reads.")
    bundle: str | None = Field(None, description="Bundle to serve; null: untrained networks of bundle_preset.")
    bundle_preset: str = Field("tiny-64", description="Preset of the untrained networks.")


@dataclass(frozen=True)
class Start:
    """One start: wall and CPU seconds until the first step."""

    seconds: float
    cpu_seconds: float


def bench_start(config: StartBenchConfig) -> BenchResult:
    """Start each command `rounds` times, and write figures.json, report.html and report.md.

    Raises: TrainingFailed, ServiceFailed, BundleInvalid, ConfigInvalid.
    """
    output = Path(resolve_location(config.output))
    output.mkdir(parents=True, exist_ok=True)
    bundle = find_bundle(config.bundle, config.bundle_preset, output)
    pictures = {name: draw_person(seed, PICTURE_PIXELS) for name, seed in (("source", 1), ("target", 2))}
    body = write_form(pictures, {})
    findings = Findings()
    with TemporaryDirectory(prefix="fr-start-") as folder, tqdm(total=3 * config.rounds, desc="bench start") as bar:
        shards = Path(folder) / "shards"
        with cluster():
            prepare(PrepareConfig(input=config.world, output=str(shards), size=64))
        for number in range(config.rounds):
            keep(findings, "help_seconds", time_help())
            bar.update()
            start = start_training(config, shards, Path(folder) / f"run-{number}")
            keep(findings, "train_first_step_seconds", start.seconds)
            keep(findings, "train_start_cpu_seconds", start.cpu_seconds)
            bar.update()
            begun = time.monotonic()
            with start_service(f"service-{number}", bundle.folder, body, output / "logs", {}) as server:
                keep(findings, "serve_first_answer_seconds", time.monotonic() - begun)
                keep(findings, "serve_start_cpu_seconds", measure_cpu(server.family()))
            bar.update()
    findings.notes = [f"{config.num_workers} workers of {config.preset}, warm disk cache, {os.cpu_count()} cores"]
    return write_result(output, "start", load_keys("start"), findings)


def keep(findings: Findings, key: str, value: float) -> None:
    findings.values.setdefault(key, []).append(value)


def time_help() -> float:
    """Time `fusionray --help`."""
    begun = time.monotonic()
    subprocess.run([*COMMAND, "--help"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command
    return time.monotonic() - begun


def start_training(config: StartBenchConfig, shards: Path, output: Path) -> Start:
    """Start a training with a Ray of its own, and end it with SIGTERM after its first step.

    Raises: TrainingFailed with the last line that it wrote.
    """
    output.mkdir(parents=True)
    settings = [f"data.shards={shards}", f"workers.num_workers={config.num_workers}", "workers.cpus_per_worker=0.5"]
    command = [*COMMAND, "train", "--preset", config.preset, "--output", str(output), *settings]
    with ray_folder() as variables:
        return run_until(command, {**os.environ, **variables}, output / "train.log", has_stepped)


def has_stepped(log: str) -> bool:
    """Tell whether a progress bar of a training has left zero."""
    return any(int(images) > 0 for images in BAR.findall(log))


def run_until(
    command: Sequence[str], environment: dict[str, str], log: Path, is_reached: Callable[[str], bool]
) -> Start:
    """Run a command until `is_reached` holds for its log, then end it; measure wall and CPU time up to then.

    Raises: TrainingFailed if the command ends before, or takes longer than `START_SECONDS`.
    """
    with log.open("wb") as stream:
        begun = time.monotonic()
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment, start_new_session=True)  # noqa: S603
    try:
        while not is_reached(log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() - begun > START_SECONDS:
                lines = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
                raise TrainingFailed(f"{' '.join(command[:4])}: it made no step; its last line is: {lines[-1][:300]}")
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - begun
        return Start(seconds, measure_cpu(list_family(process)))
    finally:
        stop(process)


def list_family(process: subprocess.Popen[bytes]) -> set[int]:
    """List the living processes of a session leader, also those that it left behind when it ended."""
    processes = list_processes()
    return add_descendants({pid for pid, each in processes.items() if each.session == process.pid}, processes)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process with SIGTERM, and what is left of its family after a while with SIGKILL."""
    family = list_family(process)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    for pid in family & list_processes().keys():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
