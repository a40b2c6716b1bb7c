"""`fusionray bench train`: measure every key of the table, print it, write figures.json, report.md and train.png.

The parts that need torch alone run anywhere: `python -m fusionray.benchmarks.train --engine-only --output DIR`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from fusionray.benchmarks.drawing import draw
from fusionray.benchmarks.engine_parts import measure_plain, measure_recompute, measure_saving
from fusionray.benchmarks.findings import Findings, Goal, load_goals, write_markdown, write_text
from fusionray.benchmarks.gpu import measure_gpu
from fusionray.benchmarks.scaling import measure_scaling
from fusionray.benchmarks.subject import TrainBenchConfig
from fusionray.benchmarks.turns import Pace
from fusionray.config import load_config
from fusionray.data import storage
from fusionray.errors import ConfigInvalid, FusionRayError
from fusionray.evaluation.figures import Figures, write_figures
from fusionray.ops.environment import apply_defaults, resolve_location

NAME = "bench-train"
PICTURE_NAME = "train.png"
REPORT_NAME = "report.md"

Measure = Callable[[TrainBenchConfig, torch.device, Pace, Callable[[], None]], Findings]
# Those without Ray first: nothing else runs on the machine yet.
ENGINE_PARTS: dict[str, Measure] = {
    "plain": measure_plain,
    "scaling": measure_scaling,
    "saving": measure_saving,
    "recompute": measure_recompute,
    "gpu": measure_gpu,
}
RAY_PARTS = ("loader", "loop")


@dataclass(frozen=True)
class BenchResult:
    """The figures, and the table as it is printed."""

    figures: Figures
    table: str


def bench_train(config: TrainBenchConfig, *, address: str | None = None, engine_only: bool = False) -> BenchResult:
    """Measure what a training benchmark is asked for; `address` names a Ray cluster, default: one of our own.

    Raises: ConfigInvalid, ValueError for settings; any FusionRayError of what is measured.
    """
    goals = choose_goals(config.keys)
    device = choose_device(config)
    config = config.model_copy(update={"output": resolve_location(config.output)})
    Path(config.output).mkdir(parents=True, exist_ok=True)
    pace = Pace(config.rounds, config.steps, time.monotonic() + config.seconds)
    wanted = {goal.part for goal in goals.values()}
    findings = Findings()
    for name, measure in ENGINE_PARTS.items():
        if name in wanted:
            run_part(name, measure, config, device, pace, goals, findings)
    if wanted & set(RAY_PARTS):
        reason = "--engine-only" if engine_only else why_no_ray()
        if reason:
            missing = {key: reason for key, goal in goals.items() if goal.part in RAY_PARTS}
            findings.add(Findings(missing=missing))
        else:
            from fusionray.benchmarks.ray_parts import measure_loaders, measure_loop
            from fusionray.ops.cluster import cluster

            with cluster(address):
                for name, measure in (("loader", measure_loaders), ("loop", measure_loop)):
                    if name in wanted:
                        run_part(name, measure, config, device, pace, goals, findings)
    return write_result(Path(config.output), goals, findings)


def choose_goals(keys: Sequence[str]) -> dict[str, Goal]:
    """Choose the rows of the table.

    Raises: ConfigInvalid naming the keys there are.
    """
    goals = load_goals()
    for key in keys:
        if key not in goals:
            raise ConfigInvalid(f"keys: there is no key '{key}'; there are: {', '.join(goals)}")
    return {key: goal for key, goal in goals.items() if not keys or key in keys}


def choose_device(config: TrainBenchConfig) -> torch.device:
    """Choose what the engine is measured on.

    Raises: ConfigInvalid if a GPU was asked for and there is none.
    """
    found = torch.cuda.is_available()
    if config.device == "cuda" and not found:
        raise ConfigInvalid("device=cuda: this machine has no GPU that torch can use; leave it at auto")
    return torch.device("cuda", 0) if found and config.device != "cpu" else torch.device("cpu")


def why_no_ray() -> str:
    """Say why nothing can be measured on Ray; empty where it is installed."""
    try:
        import ray
    except ImportError:
        return "Ray is not installed"
    del ray
    return ""


def run_part(
    name: str,
    measure: Measure,
    config: TrainBenchConfig,
    device: torch.device,
    pace: Pace,
    goals: dict[str, Goal],
    findings: Findings,
) -> None:
    """Measure a part, unless the time is used up; say how long it took."""
    if time.monotonic() > pace.until:
        reason = f"the limit of {config.seconds:g} s was reached before its turn; raise seconds"
        findings.add(Findings(missing={key: reason for key, goal in goals.items() if goal.part == name}))
        return
    started = time.monotonic()
    with progress(name, pace.rounds) as tick:
        findings.add(measure(config, device, pace, tick))
    tqdm.write(f"bench {name}: {time.monotonic() - started:.0f} s", file=sys.stderr)


@contextlib.contextmanager
def progress(name: str, rounds: int) -> Iterator[Callable[[], None]]:
    """Draw a bar over the rounds of a part."""
    tqdm.write(f"bench {name}: begins", file=sys.stderr)
    with tqdm(total=rounds, desc=f"bench {name}", unit="round", leave=False) as bar:
        yield lambda: bar.update() and None


def write_result(folder: Path, goals: dict[str, Goal], findings: Findings) -> BenchResult:
    """Write figures, report and picture."""
    missing = {key: reason for key, reason in findings.missing.items() if key in goals}
    figures = write_figures(folder, NAME, findings.figures(goals), missing)
    report = write_markdown("Training benchmarks", figures, findings, goals, PICTURE_NAME)
    storage.write_atomic(str(folder / REPORT_NAME), report.encode())
    storage.write_atomic(str(folder / PICTURE_NAME), draw(figures, goals, findings.ledgers))
    return BenchResult(figures, write_text(figures, findings))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the engine without the command line's other stages; exit 1 with one line if that is not possible."""
    parser = argparse.ArgumentParser(prog="python -m fusionray.benchmarks.train", description=__doc__)
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of figures.json, report.md, train.png")
    parser.add_argument("--engine-only", action="store_true", help="leave out what needs Ray, installed or not")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, such as rounds=3")
    options = parser.parse_args(arguments)
    apply_defaults()
    try:
        config = load_config(TrainBenchConfig, overrides=[*options.overrides, f"output={options.output}"])
        print(bench_train(config, engine_only=options.engine_only).table)
    except (FusionRayError, ValueError) as error:
        print(f"bench train: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
