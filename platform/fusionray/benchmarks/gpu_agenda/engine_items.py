"""Items that run the training engine: does it step, learn as on a CPU, wait for the host, recompile, and how fast."""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fusionray.benchmarks.gpu_agenda.agenda import Workplace
from fusionray.benchmarks.interleaving import time_steps, wait_for
from fusionray.benchmarks.setup import BenchSetup
from fusionray.benchmarks.train.gpu import fill_memory, measure_busy
from fusionray.training.dry_run.dry_run import dry_run, load_dry_config
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.step_report import StepReport
from fusionray.types import PairBatch

# The penalty comes every 16 steps: twenty hold all phases.
WARM_UP, TIMED = 4, 16
COMPARED_STEPS, LAST_STEPS = 50, 10
SYNC_FROM, SYNC_UNTIL = 10, 30
PROFILED = 2
# Lines of the list of what a first step spends its time on.
LISTED_CALLS = 12
# With a penalty in every second step, which is recorded in its third.
GRAPH_STEPS, PENALTY = 8, "recipe.gradient_penalty_interval=2"
# The calls that start a kernel: those of the runtime (cuDNN uses the extended one too), and of the driver (Triton).
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")


def load_setup(preset: str, device: str, *settings: str) -> BenchSetup:
    """Load a preset as a run would, with its own optimizers, and untrained encoders; `settings`: `KEY=VALUE`."""
    return BenchSetup(load_dry_config(None, settings, preset), torch.device(device))


def build_stepper(engine: Engine, setup: BenchSetup) -> Callable[[], StepReport]:
    """Return a function that takes one step of a run: the next batch in page-locked memory."""
    batches: Iterator[PairBatch] = itertools.cycle(setup.draw_batches(engine.local_batch_images))
    return lambda: engine.step(next(batches))


def run_dry(place: Workplace, preset: str) -> dict[str, Any]:
    """Take the dry run of a preset on the device."""
    found = dry_run(load_dry_config(None, [f"workers.device={place.device}"], preset))
    return {"step_seconds": found.step_seconds, "losses": found.losses, "batch_size": found.plan.batch_size}


def learn(place: Workplace, preset: str, precision: str, device: str | None = None) -> dict[str, Any]:
    """Take fifty steps; return the mean of each loss over the last ten, and that over the CPU's in float32.

    Random numbers differ by device, so curves are compared, not steps.
    """
    setup = load_setup(preset, device or place.device)
    engine = setup.build_engine(precision=precision, compile=False)
    step = build_stepper(engine, setup)
    reports = [step().losses for _ in range(COMPARED_STEPS)]
    last = average_last(reports)
    found: dict[str, Any] = {"last": last, "skipped": engine.skipped_steps}
    if device is None:
        cpu = place.read("losses-cpu")["last"]
        found["over_cpu"] = {name: last[name] / cpu[name] for name in last if cpu.get(name)}
    return found


def average_last(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average each loss over the last steps that have it: a lazy penalty comes once in many."""
    found = {name: [report[name] for report in reports if name in report] for name in reports[0]}
    return {name: statistics.fmean(values[-LAST_STEPS:]) for name, values in found.items()}


def compare_graphs(place: Workplace, preset: str, **changes: Any) -> dict[str, Any]:
    """Take equal steps with CUDA graphs and without; return the largest relative difference of each loss, and more.

    All is recorded by the fifth step.
    """
    setup = load_setup(preset, place.device, PENALTY)
    reports, weights = [], []
    for cuda_graphs in (False, True):
        engine = setup.build_engine(**{"compile": False, **changes, "cuda_graphs": cuda_graphs})
        step = build_stepper(engine, setup)
        reports.append([step().losses for _ in range(GRAPH_STEPS)])
        trained = [value for network in engine.networks.values() for value in network.parameters()]
        weights.append(torch.cat([value.detach().flatten() for value in trained]))
    off, on = reports
    pairs = {
        name: [(one[name], other[name]) for one, other in zip(off, on, strict=True) if name in one] for name in off[0]
    }
    return {
        "differences": {
            name: max(abs(one - other) / max(abs(one), 1e-6) for one, other in values) for name, values in pairs.items()
        },
        "weights": float((weights[0] - weights[1]).norm() / weights[0].norm()),
        "recordings": len(engine.passes.graphs.recordings) if engine.passes.graphs else 0,
        "last": {name: values[-1] for name, values in pairs.items()},
    }


def count_syncs(place: Workplace, preset: str) -> dict[str, Any]:
    """Count, by line, where the host waits for the device in a step."""
    setup = load_setup(preset, place.device)
    step = build_stepper(setup.build_engine(compile=False), setup)
    for _ in range(SYNC_FROM):
        step()
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(SYNC_FROM, SYNC_UNTIL):
            step()
    torch.cuda.set_sync_debug_mode("default")
    lines = Counter(f"{Path(each.filename).name}:{each.lineno}" for each in caught if "synchroniz" in str(each.message))
    return {"per_step": lines.total() / (SYNC_UNTIL - SYNC_FROM), "lines": dict(lines.most_common(12))}


def count_compilations(place: Workplace, preset: str) -> dict[str, Any]:
    """Compile the networks; count graphs, breaks and recompilations over steps with every phase."""
    from torch._dynamo.utils import counters

    setup = load_setup(preset, place.device)
    engine = setup.build_engine(compile=True)
    step = build_stepper(engine, setup)
    first = time_steps(step, 1, setup.device)
    early = dict(counters["stats"])
    later = time_steps(step, WARM_UP + TIMED, setup.device)
    return {
        "first_step_seconds": first,
        "later_step_seconds": later / (WARM_UP + TIMED),
        "graphs_after_first_step": early.get("unique_graphs", 0),
        "graphs": counters["stats"].get("unique_graphs", 0),
        "graph_breaks": dict(counters["graph_break"].most_common(8)),
    }


def measure_rate(
    place: Workplace, preset: str, images: int, *, cudnn_benchmark: bool = True, **changes: Any
) -> dict[str, Any]:
    """Measure images/s and the peak of memory at a batch size; `changes` are settings of `engine`."""
    started = time.monotonic()
    setup = load_setup(preset, place.device)
    engine = setup.build_engine(global_batch=images, batch_size=images, **changes)
    torch.backends.cudnn.benchmark = cudnn_benchmark
    step = build_stepper(engine, setup)
    found: dict[str, Any] = {"build_seconds": time.monotonic() - started}
    found["first_step_seconds"] = time_steps(step, 1, setup.device)
    # Two more, and those in which CUDA graphs are recorded.
    found["warm_up_seconds"] = time_steps(step, WARM_UP, setup.device)
    with place.alone():
        seconds = time_steps(step, TIMED, setup.device)
    found |= {"images_per_second": images * TIMED / seconds, **engine.choices()}
    if setup.device.type == "cuda":
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return found


def record_profile(place: Workplace, preset: str, **changes: Any) -> dict[str, Any]:
    """Record steps: launches and kernels a step, the share of time in which the device works, a table of kernels."""
    setup = load_setup(preset, place.device)
    engine = setup.build_engine(compile=False, **changes)
    step = build_stepper(engine, setup)
    time_steps(step, WARM_UP, setup.device)
    with place.alone(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        time_steps(step, PROFILED, setup.device)
    averages = recorded.key_averages()
    by_time = "self_cuda_time_total" if setup.device.type == "cuda" else "self_cpu_time_total"
    graphs = "graphs" if engine.passes.graphs else "eager"
    (place.folder / f"profile-{preset}-{graphs}.txt").write_text(averages.table(sort_by=by_time, row_limit=40))
    launches = sum(event.count for event in averages if event.key.startswith(LAUNCHES))
    kernels = sum(event.count for event in averages if event.device_type.name == "CUDA")
    with place.alone():
        busy = measure_busy(engine, setup) if launches else None
    return {"launches_per_step": launches / PROFILED, "kernels_per_step": kernels / PROFILED, "busy": busy}


def profile_first_step(place: Workplace, preset: str, *, cudnn_benchmark: bool = True) -> dict[str, Any]:
    """Say what the first step of a process spends its seconds on, and how long the next two take."""
    started = time.monotonic()
    setup = load_setup(preset, place.device)
    engine = setup.build_engine(compile=False)
    step = build_stepper(engine, setup)
    torch.backends.cudnn.benchmark = cudnn_benchmark
    found: dict[str, Any] = {"build_seconds": time.monotonic() - started}
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setup.device.type == "cuda" else [])]
    with profile(activities=activities) as recorded:
        found["first_step_seconds"] = time_steps(step, 1, setup.device)
    calls = sorted(recorded.key_averages(), key=lambda event: -event.self_cpu_time_total)[:LISTED_CALLS]
    found["calls"] = {event.key: {"count": event.count, "seconds": event.self_cpu_time_total / 1e6} for event in calls}
    found["next_step_seconds"] = [time_steps(step, 1, setup.device) for _ in range(2)]
    return found


def fill_device(place: Workplace, preset: str) -> dict[str, Any]:
    """Let the engine choose its batch; return the share of the device's memory that torch then holds."""
    notes: list[str] = []
    return {"share": fill_memory(load_setup(preset, place.device), notes), "notes": notes}


def squeeze_memory(place: Workplace, preset: str, images: int) -> dict[str, Any]:
    """Take most of the memory away in mid-run: the engine has to halve its batch and go on with the same step."""
    setup = load_setup(preset, place.device)
    engine = setup.build_engine(global_batch=images, batch_size="auto", compile=False)
    step = build_stepper(engine, setup)
    time_steps(step, 2, setup.device)
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    free, _ = torch.cuda.mem_get_info()
    # What is left holds the state, and half of what a step needs beside it.
    filler = torch.empty(max(0, free - (peak - held) // 2), dtype=torch.uint8, device="cuda")
    before = engine.batch_size
    losses = step().losses
    wait_for(setup.device)
    del filler
    return {"before": before, "after": engine.batch_size, "notes": engine.notes, "losses": losses}
