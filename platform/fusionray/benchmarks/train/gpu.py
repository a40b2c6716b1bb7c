"""The parts that need a GPU: the gain of mixed precision, the memory that `auto` fills, the share of busy time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import Pace, divide, interleave, time_steps, wait_for
from fusionray.benchmarks.setup import BenchSetup, TrainBenchConfig, build_setup
from fusionray.hardware.profiles import describe_profile
from fusionray.training.engine.engine import Engine
from fusionray.training.run.batch_size_search import fit_batch
from fusionray.training.run.device_prefetcher import DevicePrefetcher
from fusionray.training.timing.step_timer import measure_union

KEYS = ("gpu_amp_speedup", "gpu_memory_auto", "gpu_busy")
# Steps in which the device is recorded: enough to include the host's work between them.
BUSY_STEPS = 10
SAMPLE_IMAGES = 8
AUTO_STEPS = 3


def measure_gpu(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Measure on the GPU; without one, every key is missing."""
    if device.type != "cuda":
        return Findings(missing=dict.fromkeys(KEYS, "no GPU"))
    setup = build_setup(bench, bench.gpu_preset, device)
    engine = setup.build_engine()
    note = f"GPU: {describe_profile(engine.profile.model_copy(update=engine.choices()), device)}; {bench.gpu_preset}"
    found = Findings(notes=[f"{note}, {engine.local_batch_images} images a step"])
    if engine.precision.name in ("fp32", "tf32"):
        found.missing["gpu_amp_speedup"] = f"the profile {engine.profile.name} computes in {engine.precision.name}"
    else:
        found.values["gpu_amp_speedup"] = compare_precisions(setup, engine, pace, tick)
    found.values["gpu_busy"] = [measure_busy(engine, setup)]
    del engine
    torch.cuda.empty_cache()
    found.values["gpu_memory_auto"] = [fill_memory(setup, found.notes)]
    return found


def feed_steps(engine: Engine, setup: BenchSetup) -> Callable[[], object]:
    """Return a function that takes a step as a run does: from page-locked memory, with one batch prefetched."""
    feed = DevicePrefetcher(itertools.cycle(setup.draw_batches(engine.local_batch_images)), engine.device)

    def step() -> None:
        engine.precision.apply_to_process()  # global to the process
        engine.step(next(feed))
        engine.step_timer.end_step(engine.local_batch_images)

    return step


def compare_precisions(setup: BenchSetup, engine: Engine, pace: Pace, tick: Callable[[], None]) -> list[float]:
    """Return how many times faster the profile's precision is than float32 without TF32."""
    exact = setup.build_engine(precision="fp32")
    candidates = {"amp": feed_steps(engine, setup), "fp32": feed_steps(exact, setup)}
    seconds = interleave(candidates, pace, device=setup.device, tick=tick)
    return divide(seconds["fp32"], seconds["amp"])


def measure_busy(engine: Engine, setup: BenchSetup) -> float:
    """Return the share of the time in which at least one kernel or copy runs."""
    step = feed_steps(engine, setup)
    time_steps(step, 2, engine.device)
    # Only kernels are recorded: recording the host's work would slow the host, and the device would wait for it.
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        time_steps(step, 1, engine.device)
        seconds = time_steps(step, BUSY_STEPS, engine.device)
    return busy_seconds(recorded.events(), seconds) / seconds


def busy_seconds(events: Any, window_seconds: float) -> float:
    """Return the seconds covered by a device's work in the last `window_seconds` of a recording (times in us)."""
    spans = [
        (event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in events
        # The profiler also puts ranges of user code on the device's timeline, gaps included.
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
    ]
    if not spans:
        return 0.0
    begin = max(end for _, end in spans) - window_seconds
    return measure_union((max(start, begin), end) for start, end in spans if end > begin)


def fill_memory(setup: BenchSetup, notes: list[str]) -> float:
    """Let the engine choose its batch and take steps; return the share of the device's memory that torch then holds."""
    engine = setup.build_engine(batch_size="auto", global_batch="auto")
    sample = setup.draw_batches(SAMPLE_IMAGES, 1)[0]
    fit_batch(engine, sample)
    index = torch.arange(engine.local_batch_images) % SAMPLE_IMAGES
    batch = sample.map(lambda value: value[index])
    torch.cuda.reset_peak_memory_stats(setup.device)
    time_steps(lambda: engine.step(batch), AUTO_STEPS, setup.device)
    wait_for(setup.device)
    peak = torch.cuda.max_memory_reserved(setup.device)
    total = torch.cuda.get_device_properties(setup.device).total_memory
    notes.append(
        f"auto: {engine.batch_size} images at once; torch holds {peak / 2**30:.1f} of {total / 2**30:.1f} GiB, "
        f"engine.memory_share={engine.config.memory_share:g}"
    )
    return peak / total
