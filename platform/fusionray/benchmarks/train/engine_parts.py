"""The parts that need torch alone, measured in this process: the plain recipe, saving, recomputation."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import Pace, divide, interleave, time_steps, wait_for
from fusionray.benchmarks.setup import BenchSetup, TrainBenchConfig, build_setup
from fusionray.benchmarks.train.plain_recipe import PlainRecipe
from fusionray.checkpoint.info import CheckpointInfo
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.training.dry_run.footprint import measure_step
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import counters, state_tensors
from fusionray.training.timing.report import StepTimes
from fusionray.types import Batch

# Without the lazy penalty all steps cost the same, so single steps can be compared.
WITHOUT_PENALTY = {"weights": {"gradient_penalty": 0.0}}
# The public recipe has photographs, without a rendered true fusion, and no gradient penalty.
PUBLIC = {"paired": False, **WITHOUT_PENALTY}
# Normal steps between two saves, for comparison.
STEPS_A_SAVE = 6


def stepper(engine: Engine, shares: Sequence[Batch]) -> Callable[[], object]:
    """Return a function that takes one step on the next batch in memory and ends it in the step timer."""
    endless = itertools.cycle(shares)

    def step() -> None:
        engine.step_timer.restart()  # exclude the time of the other candidates
        engine.step(next(endless))
        engine.step_timer.end_step(engine.local_batch_images)

    return step


def parts_in_ms(summary: StepTimes) -> dict[str, float]:
    """Return the milliseconds of each part of a step."""
    return {name: 1e3 * seconds for name, seconds in summary.seconds.items()}


def measure_plain(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare the engine with the plain recipe, in float32 and in the engine's precision."""
    setup = build_setup(bench, bench.engine_preset, device, recipe=PUBLIC)
    engine = setup.build_engine()
    images = engine.local_batch_images
    ours = stepper(engine, setup.draw_batches(images))
    plain, plain_amp = (PlainRecipe(setup.build_recipe(), engine, amp=amp) for amp in (False, True))

    def step_ours() -> None:
        engine.precision.apply_to_process()  # global to the process
        ours()

    seconds = interleave(
        {"ours": step_ours, "plain": plain_stepper(plain, setup), "plain_amp": plain_stepper(plain_amp, setup)},
        pace,
        device=device,
        tick=tick,
    )
    return Findings(
        values={
            "vs_plain_recipe": divide(seconds["plain"], seconds["ours"]),
            "vs_plain_recipe_amp": divide(seconds["plain_amp"], seconds["ours"]),
        },
        breakdowns={"one worker, batches in memory": parts_in_ms(engine.step_timer.take())},
        notes=[
            f"plain recipe: {bench.engine_preset}, {images} images a step, {torch.get_num_threads()} threads, "
            f"{device.type}; images/s: ours in {engine.precision.name} "
            f"{median_rate(seconds['ours'], pace, images):.1f}, "
            f"plain in fp32 {median_rate(seconds['plain'], pace, images):.1f}"
        ],
    )


def plain_stepper(plain: PlainRecipe, setup: BenchSetup) -> Callable[[], object]:
    """Return a function that takes one plain step on the next batch in memory."""
    batches = itertools.cycle(setup.draw_batches(plain.batch))

    def step() -> None:
        # The public recipe sets "high" on a GPU and nothing on a CPU.
        torch.set_float32_matmul_precision("high" if plain.device.type == "cuda" else "highest")
        plain.step(next(batches))

    return step


def median_rate(seconds: list[float], pace: Pace, images: int) -> float:
    """Return the median images/s over the rounds."""
    return pace.steps * images / statistics.median(seconds)


def measure_saving(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare the step that starts a save, a whole iteration of the loop, with steps without a save."""
    setup = build_setup(bench, bench.engine_preset, device, recipe=WITHOUT_PENALTY)
    engine = setup.build_engine()
    step = stepper(engine, setup.draw_batches(engine.local_batch_images))
    time_steps(step, 2, device)
    ratios: list[float] = []
    after: list[float] = []
    with TemporaryDirectory(prefix="saving-", dir=Path(bench.output)) as folder:
        writer = CheckpointWriter(folder, keep=2)
        try:
            # The first save is reported separately.
            while pace.goes_on(max(0, len(ratios) - 1)):
                normal = statistics.median(time_steps(step, 1, device) for _ in range(STEPS_A_SAVE))
                ratios.append(time_saving_step(engine, step, writer, setup) / normal)
                after.append(time_steps(step, 1, device) / normal)
                writer.wait()
                tick()
        finally:
            writer.close()
    return Findings(
        values={
            "checkpoint_step_ratio": ratios[1:],
            "checkpoint_first_ratio": ratios[:1],
            "checkpoint_after_ratio": after[1:],
        },
        notes=[
            f"saving: {bench.engine_preset}, {state_megabytes(engine):.0f} MB of state, "
            f"a normal step {normal * 1e3:.0f} ms"
        ],
    )


def time_saving_step(engine: Engine, step: Callable[[], object], writer: CheckpointWriter, setup: BenchSetup) -> float:
    """Return the seconds of a step that ends with a checkpoint, as in a training worker."""
    wait_for(engine.device)
    started = time.perf_counter()
    step()
    info = CheckpointInfo(
        config=setup.config.model_dump(mode="json"),
        num_people=2,
        data_digest="none",
        images_seen=engine.images_seen,
        seconds=0.0,
        metrics={},
        counters=counters(engine),
        position={},
    )
    writer.begin(state_tensors(engine), info)
    wait_for(engine.device)
    return time.perf_counter() - started


def state_megabytes(engine: Engine) -> float:
    """Return the size of a checkpoint's tensors in MB."""
    return sum(value.nbytes for value in state_tensors(engine).values()) / 1e6


def measure_recompute(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare memory and time of steps that recompute activations and of steps that keep them."""
    setup = build_setup(bench, bench.recompute_preset, device)
    images = bench.recompute_images
    memory = {
        activation_checkpointing: measure_memory(setup, images, activation_checkpointing=activation_checkpointing)
        for activation_checkpointing in (False, True)
    }
    steps: dict[str, Callable[[], object]] = {}
    for name, activation_checkpointing in (("kept", False), ("recomputed", True)):
        engine = setup.build_engine(
            global_batch=images, batch_size=None, activation_checkpointing=activation_checkpointing
        )
        steps[name] = stepper(engine, setup.draw_batches(images))
    # A step of this preset is long, so a round is one step.
    seconds = interleave(steps, Pace(pace.rounds, 1, pace.until), device=device, warm_up=1, tick=tick)
    return Findings(
        values={
            "recompute_memory_ratio": [memory[True]["peak"] / memory[False]["peak"]],
            "recompute_kept_ratio": [memory[True]["kept"] / memory[False]["kept"]],
            "recompute_time_ratio": divide(seconds["recomputed"], seconds["kept"]),
        },
        notes=[
            f"recomputation: {bench.recompute_preset}, {images} images a step, peak beyond the networks' state "
            f"{memory[False]['peak'] / 2**20:.0f} MiB an image kept, {memory[True]['peak'] / 2**20:.0f} MiB recomputed"
        ],
    )


def measure_memory(setup: BenchSetup, images: int, *, activation_checkpointing: bool) -> dict[str, float]:
    """Return bytes an image: `peak` of a step beyond networks and their states, `kept` for the backward pass.

    The tensors are counted one by one, alike on every device: a CPU's allocator does not report what is in use.
    """
    engine = setup.build_engine(global_batch=images, batch_size=None, activation_checkpointing=activation_checkpointing)
    batch: Any = setup.draw_batches(images, 1)[0].to(setup.device)
    footprint = measure_step(engine.recipe, batch, engine.precision, activation_checkpointing=activation_checkpointing)
    return {"peak": max(phase.peak_bytes for phase in footprint.phases), "kept": footprint.activation_bytes}
