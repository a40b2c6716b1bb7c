"""`fusionray bench train`: measure every key, print the table, write figures.json, report.html and report.md.

The parts that need torch alone run without Ray: `python -m fusionray.benchmarks.train.run --engine-only --output DIR`.
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

from fusionray.benchmarks.findings import BenchKey, Findings, load_keys
from fusionray.benchmarks.interleaving import Pace
from fusionray.benchmarks.results import BenchResult, write_result
from fusionray.benchmarks.setup import TrainBenchConfig
from fusionray.benchmarks.train.engine_parts import measure_plain, measure_recompute, measure_saving
from fusionray.benchmarks.train.gpu import measure_gpu
from fusionray.benchmarks.train.scaling import measure_scaling
from fusionray.config import load_config
from fusionray.environment import apply_defaults, resolve_location
from fusionray.errors import ConfigInvalid, FusionRayError

Measure = Callable[[TrainBenchConfig, torch.device, Pace, Callable[[], None]], Findings]
# The parts without Ray run first, while the machine is idle.
ENGINE_PARTS: dict[str, Measure] = {
    "plain": measure_plain,
    "scaling": measure_scaling,
    "saving": measure_saving,
    "recompute": measure_recompute,
    "gpu": measure_gpu,
}
RAY_PARTS = ("loader", "loop")
# Their rounds run in other processes, or they draw their own bar.
WITHOUT_BAR = ("scaling", *RAY_PARTS)


@dataclass(frozen=True)
class TrainBench:
    """One running benchmark: its settings, and the findings so far."""

    config: TrainBenchConfig
    device: torch.device
    keys: dict[str, BenchKey]
    pace: Pace
    findings: Findings

    def wants(self, part: str) -> bool:
        """Tell whether a key of this part is requested."""
        return any(key.part == part for key in self.keys.values())

    def skip(self, part: str, reason: str) -> None:
        """Record why a part is not measured."""
        self.findings.missing |= {name: reason for name, key in self.keys.items() if key.part == part}

    def run(self, part: str, measure: Measure) -> None:
        """Measure a part if it is requested and time is left; log its duration."""
        if not self.wants(part):
            return
        if time.monotonic() > self.pace.until:
            self.skip(part, f"the limit of {self.config.seconds:g} s was reached before; raise seconds")
            return
        started = time.monotonic()
        with progress(part, self.pace.rounds) as tick:
            self.findings.add(measure(self.config, self.device, self.pace, tick))
        tqdm.write(f"bench {part}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def bench_train(config: TrainBenchConfig, *, address: str | None = None, engine_only: bool = False) -> BenchResult:
    """Run the training benchmark; `address` names a Ray cluster, default: a local one.

    Raises: ConfigInvalid, ValueError for settings; any FusionRayError of a measured part.
    """
    keys = choose_keys(config.keys)
    device = choose_device(config)
    config = config.model_copy(update={"output": resolve_location(config.output)})
    Path(config.output).mkdir(parents=True, exist_ok=True)
    pace = Pace(config.rounds, config.steps, time.monotonic() + config.seconds)
    bench = TrainBench(config, device, keys, pace, Findings())
    for part, measure in ENGINE_PARTS.items():
        bench.run(part, measure)
    if any(map(bench.wants, RAY_PARTS)):
        reason = "--engine-only" if engine_only else explain_no_ray()
        if not reason:
            run_ray_parts(bench, address)
        for part in RAY_PARTS if reason else ():
            bench.skip(part, reason)
    return write_result(Path(config.output), "train", keys, bench.findings)


def run_ray_parts(bench: TrainBench, address: str | None) -> None:
    """Measure the parts that need Ray, which is only imported here."""
    from fusionray.benchmarks.train.ray_parts import measure_loaders, measure_loop
    from fusionray.ray_cluster.connection import cluster, require_cluster

    with cluster(address):
        require_cluster()
        bench.run("loader", measure_loaders)
        bench.run("loop", measure_loop)


def choose_keys(names: Sequence[str]) -> dict[str, BenchKey]:
    """Choose the rows of the table.

    Raises: ConfigInvalid listing the keys.
    """
    keys = load_keys("train")
    for name in names:
        if name not in keys:
            raise ConfigInvalid(f"keys: there is no key '{name}'; choose from: {', '.join(keys)}")
    return {name: key for name, key in keys.items() if not names or name in names}


def choose_device(config: TrainBenchConfig) -> torch.device:
    """Choose the device of the engine.

    Raises: ConfigInvalid if a GPU is requested and there is none.
    """
    found = torch.cuda.is_available()
    if config.device == "cuda" and not found:
        raise ConfigInvalid("device=cuda: this machine has no GPU that torch can use; leave it at auto")
    return torch.device("cuda", 0) if found and config.device != "cpu" else torch.device("cpu")


def explain_no_ray() -> str:
    """Explain why nothing can be measured on Ray; empty if it is installed."""
    try:
        import ray
    except ImportError:
        return "Ray is not installed"
    del ray
    return ""


@contextlib.contextmanager
def progress(name: str, rounds: int) -> Iterator[Callable[[], None]]:
    """Draw a bar over the rounds of a part."""
    tqdm.write(f"bench {name}: begins", file=sys.stderr)
    silent = name in WITHOUT_BAR
    with tqdm(total=rounds, desc=f"bench {name}", unit="round", leave=False, disable=silent) as bar:

        def tick() -> None:
            bar.update()

        yield tick


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark without the other commands; exit 1 with one line if that fails."""
    parser = argparse.ArgumentParser(prog="python -m fusionray.benchmarks.train.run", description=__doc__)
    parser.add_argument("--output", metavar="DIR", required=True, help="folder of figures.json and report.html")
    parser.add_argument("--engine-only", action="store_true", help="skip the parts that need Ray")
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
