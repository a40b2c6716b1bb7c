"""What two processes of a gloo group do together; run in children, so it lies apart from the tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from fusionray.data import synthetic
from fusionray.hardware.memory import resident_bytes
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.identity import IdentityRecipe, IdentityRecipeConfig
from fusionray.recipes.recipe import Losses
from fusionray.training.config import EngineConfig, ParallelConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import state_tensors
from fusionray.training.run.batch_size_search import fit_batch
from fusionray.training.schedule import ScheduleConfig
from fusionray.types import FaceBatch
from tests.support.tiny_fusion import ENCODER, build_pairs, build_recipe
from tests.support.toy_recipe import HUNGRY, HungryRecipe, ToyRecipe, draw_numbers, split

NUM_RANKS = 2
NUM_STEPS = 3
CPU = torch.device("cpu")
SETTINGS = {"precision": "fp32", "clip_norm": 1e6, "ema_half_life_images": 64.0}


def build_engine(*, global_batch: int = 16, **changes: Any) -> Engine:
    settings = {**SETTINGS, "schedule": ScheduleConfig(warmup_images=32), **changes}
    return Engine(ToyRecipe(), EngineConfig(global_batch=global_batch, **settings), total_images=160, device=CPU)


def parameters(engine: Engine) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value.clone()
        for name, network in engine.networks.items()
        for key, value in network.state_dict().items()
    }


def train(rank: int) -> dict[str, Any]:
    """Do everything below, one after the other; return what this rank saw."""
    return {
        "toy": train_toy(rank),
        "uneven": train_unevenly(rank),
        "bad": train_with_a_bad_rank(rank),
        "fusion": train_fusion(rank),
        "identity": train_identity(rank, ParallelConfig()),
        "identity_overlapped": train_identity(rank, ParallelConfig(overlap=True)),
        "auto": find_batch(rank),
        "found_again": find_batch_in_mid_run(rank),
        "exhausted": {moment: run_out_of_memory(rank, moment == "during") for moment in ("after", "during")},
        "overflown": overflow_a_norm(rank),
        "agrees_in_the_default_group": build_engine().host_group is dist.group.WORLD,
    }


def train_toy(rank: int) -> dict[str, Any]:
    """2 ranks x 2 micro-batches x 4 rows: together the 16 rows that one process takes at once."""
    engine = build_engine(batch_size=4)
    rates, losses = [], []
    for step in range(NUM_STEPS):
        report = engine.step(split(draw_numbers(16, seed=step), NUM_RANKS)[rank])
        rates.append(report.learning_rates["first"])
        losses.append(report.losses["first"])
    return {"parameters": parameters(engine), "rates": rates, "losses": losses}


def train_unevenly(rank: int) -> dict[str, Any]:
    """Seven rows a step: the ranks take three and four of them by turns, cut into parts of two at most."""
    engine = build_engine(global_batch=7, batch_size=2)
    losses = []
    for step in range(NUM_STEPS):
        batch = draw_numbers(7, seed=step)
        middle = 4 - step % 2
        own = slice(middle) if rank == 0 else slice(middle, 7)
        losses.append(engine.step(batch.map(lambda value, own=own: value[own])).losses["first"])  # type: ignore[misc]
    return {"parameters": parameters(engine), "losses": losses}


def train_with_a_bad_rank(rank: int) -> dict[str, Any]:
    """Only rank 1 meets a damaged row: both must leave the step out, or they part for ever."""
    engine = build_engine()
    before = parameters(engine)
    batch = draw_numbers(8, seed=rank)
    if rank == 1:
        batch.first[0] = torch.nan
    report = engine.step(batch)
    return {"before": before, "after": parameters(engine), "skipped": list(report.skipped)}


def train_fusion(rank: int) -> dict[str, Any]:
    """Every loss of the real recipe, the gradient penalty due in each step, other pairs on each rank."""
    config = EngineConfig(global_batch=8, batch_size=2, precision="fp32", ema_half_life_images=8)
    engine = Engine(build_recipe(), config, total_images=64, device=CPU)
    before = parameters(engine)
    reports = []
    for step in range(2):
        report = engine.step(build_pairs(4, seed=100 * rank + 10 * step))
        reports.append({"losses": report.losses, "norms": report.grad_norms, "rates": report.learning_rates})
    return {
        "before": before,
        "parameters": parameters(engine),
        "averages": dict(engine.ema_networks["generator"].state_dict()),
        "reports": reports,
    }


def train_identity(rank: int, parallel: ParallelConfig) -> dict[str, Any]:
    """Margin head and traits head on one encoder, other faces on each rank."""
    torch.manual_seed(0)
    recipe = IdentityRecipe(
        IdentityRecipeConfig(encoder=ENCODER, traits_weight=2.0),
        num_people=8,
        face_view_23=crop_to_arcface_affine("arcface_128"),
        synthetic_faces=True,
    )
    config = EngineConfig(global_batch=8, precision="fp32", parallel=parallel)
    engine = Engine(recipe, config, total_images=64, device=CPU)
    before = parameters(engine)
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(rank))
    people = synthetic.sample_identities(8, seed=2)[4 * rank : 4 * rank + 4]
    report = engine.step(FaceBatch(images, torch.arange(4 * rank, 4 * rank + 4), people))
    return {
        "before": before,
        "parameters": parameters(engine),
        "averages": dict(engine.ema_networks["classifier"].state_dict()),
        "losses": report.losses,
    }


def find_batch(rank: int) -> dict[str, Any]:
    """The ranks agree on one batch size, though the second one has less memory."""
    engine = Engine(HungryRecipe(), EngineConfig(global_batch=64, batch_size="auto", precision="fp32"), **HUNGRY)
    engine.memory_bytes = resident_bytes() + (900 if rank == 0 else 400) * 2**20
    before = parameters(engine)
    fit_batch(engine, draw_numbers(2))
    after = parameters(engine)
    return {"batch_size": engine.batch_size, "unchanged": all(torch.equal(before[key], after[key]) for key in before)}


def find_batch_in_mid_run(rank: int) -> dict[str, Any]:
    """A run that goes on finds its batch anew: optimisers keep what they have learned, also what one rank holds."""
    config = EngineConfig(global_batch=16, batch_size="auto", parallel=ParallelConfig(strategy="zero"), **SETTINGS)
    engine = Engine(ToyRecipe("adamw"), config, total_images=160, device=CPU)
    engine.step(draw_numbers(8, seed=rank))
    before = {name: value.clone() for name, value in state_tensors(engine).items()}
    fit_batch(engine, draw_numbers(2))
    return {"before": before, "after": state_tensors(engine)}


def run_out_of_memory(rank: int, overlap: bool) -> dict[str, Any]:
    """One rank runs out of memory in mid-run: both go on with half, and learn what they would have learned."""
    engine = build_engine()
    spoiled = build_engine(parallel=ParallelConfig(overlap=overlap))
    watch = spoiled.recipe.phases[1]

    def fail_once(step: Any) -> Losses:
        if rank == 1 and len(step.batch) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return watch.loss(step)

    spoiled.recipe.phases = (spoiled.recipe.phases[0], dataclasses.replace(watch, loss=fail_once))
    reports = []
    for step in range(NUM_STEPS):
        share = split(draw_numbers(16, seed=step), NUM_RANKS)[rank]
        reports.append((engine.step(share).losses, spoiled.step(share).losses))
    return {
        "reports": reports,
        "batch_size": spoiled.batch_size,
        "notes": spoiled.notes,
        "wanted": parameters(engine),
        "found": parameters(spoiled),
    }


def overflow_a_norm(rank: int) -> list[float]:
    """Finite gradients, whose norm is not, under a sharded optimiser; returns the loss scale before and after."""
    config = EngineConfig(global_batch=16, precision="fp16", parallel=ParallelConfig(strategy="zero"))
    engine = Engine(ToyRecipe("adamw"), config, total_images=160, device=CPU)
    scaler = engine.scalers["fit_first"]
    scaler.scale(torch.ones(()))
    for parameter in engine.networks["first"].parameters():
        parameter.grad = torch.full_like(parameter, 1e30)
    before = scaler.get_scale()
    engine.update(engine.recipe.phases[0])
    return [before, scaler.get_scale()]
