"""The batch-size search on two ranks of which one runs out of memory; run in children."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from fusionray.recipes.recipe import Losses, PhaseInput
from fusionray.training.config import EngineConfig, ParallelConfig
from fusionray.training.engine import engine as engine_module
from fusionray.training.engine.engine import Engine
from fusionray.training.run.batch_size_search import fit_batch
from tests.support.toy_recipe import Numbers, ToyRecipe, draw_numbers

NUM_RANKS = 2
LOCAL_BATCH = 8
CPU = torch.device("cpu")
STRATEGIES: dict[str, ParallelConfig] = {
    "ddp": ParallelConfig(),
    "overlapped": ParallelConfig(overlap=True),
    "fsdp": ParallelConfig(strategy="fsdp", shard_from_parameters=0),
    "fsdp_bf16": ParallelConfig(strategy="fsdp", shard_from_parameters=0, compression="bf16"),
}


def search(rank: int) -> dict[str, Any]:
    """Search under each strategy, then take a step; return what this rank saw."""
    found: dict[str, Any] = {
        f"{name}_{where}": search_and_step(rank, parallel, where)
        for name, parallel in STRATEGIES.items()
        for where in ("forward", "backward")
    }
    return {"searches": found, "strategy": choose_with_uneven_memory(rank)}


def search_and_step(rank: int, parallel: ParallelConfig, where: str) -> dict[str, Any]:
    """Let rank 1 run out of memory with all images at once, and compare steps with those without a search."""
    searched, plain = build_engine(parallel, "auto"), build_engine(parallel, LOCAL_BATCH // 2)
    reports = [step_both(searched, plain, rank, 0)]
    recipe = searched.recipe
    whole = recipe.phases
    if rank == 1:
        recipe.phases = tuple(dataclasses.replace(phase, loss=starve(phase.loss, where)) for phase in whole)
    fit_batch(searched, draw_numbers(2))
    recipe.phases = whole
    reports += [step_both(searched, plain, rank, step) for step in (1, 2)]
    return {"batch_size": searched.batch_size, "reports": reports}


def step_both(searched: Engine, plain: Engine, rank: int, step: int) -> list[dict[str, float]]:
    """Take a step with both; return losses and norms of each."""
    batch = draw_numbers(LOCAL_BATCH, seed=NUM_RANKS * step + rank)
    reports = [engine.step(batch) for engine in (searched, plain)]
    return [{**report.losses, **report.grad_norms} for report in reports]


def build_engine(parallel: ParallelConfig, batch_size: Any) -> Engine:
    config = EngineConfig(
        global_batch=LOCAL_BATCH * NUM_RANKS, batch_size=batch_size, precision="fp32", parallel=parallel
    )
    return Engine(ToyRecipe("adamw"), config, total_images=160, device=CPU)


def starve(loss: Any, where: str) -> Any:
    """Run out of memory with a whole local batch, in the forward pass or in the backward pass."""

    def run(step: PhaseInput[Numbers]) -> Losses:
        if len(step.batch) < LOCAL_BATCH:
            found: Losses = loss(step)
            return found
        if where == "forward":
            fail(step.batch.x)
        x = step.batch.x.clone().requires_grad_(True)
        x.register_hook(fail)
        starved: Losses = loss(dataclasses.replace(step, batch=dataclasses.replace(step.batch, x=x)))
        return starved

    return run


def fail(value: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def choose_with_uneven_memory(rank: int) -> str:
    """Build an engine where the second rank has no memory to speak of; return the strategy that it chooses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "memory_limit", lambda *_: 2**40 if rank == 0 else 2**10)
        return build_engine(ParallelConfig(), None).chosen.strategy
