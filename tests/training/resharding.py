"""A run that goes on with another number of processes, or under another strategy; run in children."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fusionray.training.checkpoint.info import CheckpointInfo, newest_checkpoint
from fusionray.training.checkpoint.tensors import load_into
from fusionray.training.checkpoint.writer import CheckpointWriter
from fusionray.training.engine import Engine
from fusionray.training.settings import EngineConfig, ParallelConfig
from fusionray.training.state import counters, restore, state_tensors
from tests.toy_recipe import ToyRecipe, draw_numbers, split

BATCH = 12
BEFORE, AFTER = 3, 3
STRATEGIES = ("ddp", "zero", "fsdp")


def build(strategy: str) -> Engine:
    parallel = ParallelConfig.model_validate({"strategy": strategy, "shard_from_parameters": 0})
    config = EngineConfig(global_batch=BATCH, precision="fp32", average_half_life_images=64, parallel=parallel)
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


def spawn(task: str, num_ranks: int, folder: Path) -> Any:
    """Run a task in a group of processes and return what rank 0 says."""
    mp.spawn(run_rank, args=(task, num_ranks, str(folder)), nprocs=num_ranks)  # type: ignore[no-untyped-call]
    return torch.load(folder / f"{task}-{num_ranks}.pt", weights_only=True)


def run_rank(rank: int, task: str, num_ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous-{task}-{num_ranks}",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=60),
    )
    try:
        seen: dict[str, Any] = {}
        for strategy in STRATEGIES:
            engine = build(strategy)
            if task == "save":
                before = train(engine, range(BEFORE))
                save(engine, f"{folder}/{strategy}")
                seen[strategy] = {"before": before, "after": train(engine, range(BEFORE, BEFORE + AFTER))}
            else:
                # Written under one strategy, read under another.
                other = STRATEGIES[(STRATEGIES.index(strategy) + 1) % len(STRATEGIES)]
                seen[strategy] = go_on(engine, f"{folder}/{other}")
        if rank == 0:
            torch.save(seen, f"{folder}/{task}-{num_ranks}.pt")
    finally:
        dist.destroy_process_group()
