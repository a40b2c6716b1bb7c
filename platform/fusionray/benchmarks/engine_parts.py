"""What is measured in this process with torch alone: the plain recipe, saving, recomputation."""

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
from fusionray.benchmarks.plain_recipe import PlainRecipe
from fusionray.benchmarks.setup import BenchSetup, TrainBenchConfig, build_setup
from fusionray.checkpoint.info import CheckpointInfo
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.training.dry_run.footprint import measure_step
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import counters, state_tensors
from fusionray.training.timing.report import StepTimes
from fusionray.types import Batch

# Without the lazy penalty all steps are alike, and a single one can be compared.
WITHOUT_PENALTY = {"weights": {"gradient_penalty": 0.0}}
# What the public recipe knows: photographs, of which no true fusion can be rendered, and no gradient penalty.
PUBLIC = {"paired": False, **WITHOUT_PENALTY}
# Steps between two saves by which a normal one is known.
STEPS_A_SAVE = 6


def stepper(engine: Engine, shares: Sequence[Batch]) -> Callable[[], object]:
    """Return a function that takes one step on the next share in memory and closes it in the ledger."""
    endless = itertools.cycle(shares)

    def step() -> None:
        engine.ledger.restart()  # the turns of others belong to none of its steps
        engine.step(next(endless))
        engine.ledger.end_step(engine.share_images)

    return step


def parts_in_ms(summary: StepTimes) -> dict[str, float]:
    """Give the parts of a step in ms."""
    return {name: 1e3 * seconds for name, seconds in summary.seconds.items()}


def measure_plain(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare the engine with the plain recipe, in float32 and in the engine's precision."""
    subject = build_setup(bench, bench.engine_preset, device, recipe=PUBLIC)
    engine = subject.build_engine()
    images = engine.share_images
    ours = stepper(engine, subject.draw_batches(images))
    plain, plain_amp = (PlainRecipe(subject.build_recipe(), engine, amp=amp) for amp in (False, True))

    def step_ours() -> None:
        engine.precision.set_matmul_mode()  # the mode is the process's own
        ours()

    seconds = interleave(
        {"ours": step_ours, "plain": plain_stepper(plain, subject), "plain_amp": plain_stepper(plain_amp, subject)},
        pace,
        device=device,
        tick=tick,
    )
    return Findings(
        values={
            "vs_plain_recipe": divide(seconds["plain"], seconds["ours"]),
            "vs_plain_recipe_amp": divide(seconds["plain_amp"], seconds["ours"]),
        },
        ledgers={"one worker, batches in memory": parts_in_ms(engine.ledger.take())},
        notes=[
            f"plain recipe: {bench.engine_preset}, {images} images a step, {torch.get_num_threads()} threads, "
            f"{device.type}; images/s: ours in {engine.precision.name} "
            f"{median_rate(seconds['ours'], pace, images):.1f}, "
            f"plain in fp32 {median_rate(seconds['plain'], pace, images):.1f}"
        ],
    )


def plain_stepper(plain: PlainRecipe, subject: BenchSetup) -> Callable[[], object]:
    """Return a function that takes one plain step on the next batch in memory."""
    batches = itertools.cycle(subject.draw_batches(plain.batch))

    def step() -> None:
        # What the public recipe sets where there is a GPU; it sets nothing on a CPU.
        torch.set_float32_matmul_precision("high" if plain.device.type == "cuda" else "highest")
        plain.step(next(batches))

    return step


def median_rate(seconds: list[float], pace: Pace, images: int) -> float:
    """Return the median of images/s over the rounds."""
    return pace.steps * images / statistics.median(seconds)


def measure_saving(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare the step that begins a save, the loop's whole iteration, with steps beside which nothing is saved."""
    subject = build_setup(bench, bench.engine_preset, device, recipe=WITHOUT_PENALTY)
    engine = subject.build_engine()
    step = stepper(engine, subject.draw_batches(engine.share_images))
    time_steps(step, 2, device)
    ratios: list[float] = []
    after: list[float] = []
    with TemporaryDirectory(prefix="saving-", dir=Path(bench.output)) as folder:
        writer = CheckpointWriter(folder, keep=2)
        try:
            # The first save of all is apart.
            while pace.goes_on(max(0, len(ratios) - 1)):
                normal = statistics.median(time_steps(step, 1, device) for _ in range(STEPS_A_SAVE))
                ratios.append(time_saving_step(engine, step, writer, subject) / normal)
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


def time_saving_step(
    engine: Engine, step: Callable[[], object], writer: CheckpointWriter, subject: BenchSetup
) -> float:
    """Return the seconds of a step that ends as that of a training worker does when a checkpoint is due."""
    wait_for(engine.device)
    started = time.perf_counter()
    step()
    info = CheckpointInfo(
        config=subject.config.model_dump(mode="json"),
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
    """Return the size of a checkpoint's tensors."""
    return sum(value.nbytes for value in state_tensors(engine).values()) / 1e6


def measure_recompute(bench: TrainBenchConfig, device: torch.device, pace: Pace, tick: Callable[[], None]) -> Findings:
    """Compare memory and time of steps whose activations are recomputed and kept."""
    subject = build_setup(bench, bench.recompute_preset, device)
    images = bench.recompute_images
    memory = {recompute: measure_memory(subject, images, recompute=recompute) for recompute in (False, True)}
    steps: dict[str, Callable[[], object]] = {}
    for name, recompute in (("kept", False), ("recomputed", True)):
        engine = subject.build_engine(global_batch=images, batch_size=None, recompute=recompute)
        steps[name] = stepper(engine, subject.draw_batches(images))
    # A step of this preset is long: one a round.
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


def measure_memory(subject: BenchSetup, images: int, *, recompute: bool) -> dict[str, float]:
    """Return bytes an image: `peak` of a step beyond networks and their states, `kept` for the backward pass.

    Counted tensor by tensor, on every device alike: what a CPU's allocator holds says little of what is in use.
    """
    engine = subject.build_engine(global_batch=images, batch_size=None, recompute=recompute)
    batch: Any = subject.draw_batches(images, 1)[0].to(subject.device)
    footprint = measure_step(engine.recipe, batch, engine.precision, recompute=recompute)
    return {"peak": max(phase.peak_bytes for phase in footprint.phases), "kept": footprint.activation_bytes}
