"""A run that goes on with another number of processes, or under another strategy; run in children."""

from __future__ import annotations

from typing import Any

import torch

from fusionray.checkpoint.info import CheckpointInfo, newest_checkpoint
from fusionray.checkpoint.reader import load_into
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.training.config import EngineConfig, ParallelConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import counters, restore, state_tensors
from tests.support.toy_recipe import ToyRecipe, draw_numbers, split

BATCH = 12
BEFORE, AFTER = 3, 3
STRATEGIES = ("ddp", "zero", "fsdp")


def build(strategy: str) -> Engine:
    parallel = ParallelConfig.model_validate({"strategy": strategy, "shard_from_parameters": 0})
    config = EngineConfig(global_batch=BATCH, precision="fp32", ema_half_life_images=64, parallel=parallel)
    return Engine(ToyRecipe("adamw"), config, total_images=240, device=torch.device("cpu"))


def train(engine: Engine, steps: range) -> list[dict[str, float]]:
    """Take the steps that belong to these numbers, whoever takes them."""
    return [engine.step(split(draw_numbers(BATCH, seed=step), engine.num_ranks)[engine.rank]).losses for step in steps]


def save(engine: Engine, folder: str) -> None:
    writer = CheckpointWriter(folder, rank=engine.rank, num_ranks=engine.num_ranks, keep=1)
    info = CheckpointInfo(
        config={},
        num_people=0,
        data_digest="d",
        images_seen=engine.images_seen,
        seconds=0.0,
        metrics={},
        counters=counters(engine),
    )
    writer.begin(state_tensors(engine), info)
    writer.close()


def go_on(engine: Engine, folder: str) -> list[dict[str, float]]:
    found = newest_checkpoint(folder)
    assert found is not None
    restore(engine, lambda tensors: load_into(found, tensors).counters)
    return train(engine, range(BEFORE, BEFORE + AFTER))


def save_and_train_on(rank: int, folder: str) -> dict[str, Any]:
    """Save a checkpoint in the middle of a run, under each strategy."""
    seen = {}
    for strategy in STRATEGIES:
        engine = build(strategy)
        before = train(engine, range(BEFORE))
        save(engine, f"{folder}/{strategy}")
        seen[strategy] = before + train(engine, range(BEFORE, BEFORE + AFTER))
    return seen


def resume_under_another(rank: int, folder: str) -> dict[str, Any]:
    """Go on, under each strategy, from what another one has written."""
    others = (*STRATEGIES[1:], STRATEGIES[0])
    return {
        strategy: go_on(build(strategy), f"{folder}/{other}")
        for strategy, other in zip(STRATEGIES, others, strict=True)
    }
