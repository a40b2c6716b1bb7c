"""`fusionray bench serve`: measure the configured parts, write figures.json, report.html and report.md."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fusionray.benchmarks.findings import BenchKey, Findings, load_keys
from fusionray.benchmarks.results import BenchResult, write_result
from fusionray.benchmarks.serve.autoscaling import measure_scaling
from fusionray.benchmarks.serve.config import BenchPart, ServeBenchConfig
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.inputs import find_bundle
from fusionray.benchmarks.serve.load import find_generator
from fusionray.benchmarks.serve.overhead import measure_overhead
from fusionray.benchmarks.serve.overload import measure_overload
from fusionray.benchmarks.serve.proxy import measure_proxy
from fusionray.benchmarks.serve.soak import measure_soak
from fusionray.benchmarks.serve.throughput import measure_throughput
from fusionray.benchmarks.serve.warm_start import measure_warm
from fusionray.environment import resolve_location
from fusionray.errors import ServiceFailed

MEASURES: dict[BenchPart, Callable[[ServeBenchContext, Callable[[], None]], Findings]] = {
    "throughput": measure_throughput,
    "overhead": measure_overhead,
    "proxy": measure_proxy,
    "start": measure_warm,
    "scaling": measure_scaling,
    "overload": measure_overload,
    "soak": measure_soak,
}


def bench_serve(config: ServeBenchConfig) -> BenchResult:
    """Measure the parts that `config` names, and write figures.json, report.html and report.md.

    Raises: InputMissing without a load generator; ConfigInvalid, BundleInvalid.
    """
    find_generator()
    config = config.model_copy(update={"output": resolve_location(config.output)})
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    keys = {name: key for name, key in load_keys("serve").items() if key.part in config.parts}
    context = ServeBenchContext(config, find_bundle(config.bundle, config.preset, output))
    until = time.monotonic() + config.seconds
    findings = Findings()
    for part in config.parts:
        findings.add(run_part(part, context, keys, until))
        # Written after each part, so that a failure later loses nothing.
        result = write_result(output, "serve", keys, findings)
    return result


def advance(bar: Any) -> None:
    bar.update()


def run_part(part: BenchPart, context: ServeBenchContext, keys: dict[str, BenchKey], until: float) -> Findings:
    """Measure a part; if it cannot be measured, record the reason."""
    own = [name for name, key in keys.items() if key.part == part]
    if time.monotonic() > until:
        reason = f"the limit of {context.config.seconds:g} s was reached before; raise seconds"
        return Findings(missing=dict.fromkeys(own, reason))
    started = time.monotonic()
    tqdm.write(f"bench {part}: begins", file=sys.stderr)
    try:
        with tqdm(desc=f"bench {part}", unit="round", leave=False) as bar:
            found = MEASURES[part](context, lambda: advance(bar))
    except ServiceFailed as error:
        found = Findings(missing=dict.fromkeys(own, str(error)))
    tqdm.write(f"bench {part}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return found
