"""What two processes of a gloo group learn under each strategy; run in children, so it lies apart from the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from fusionray.recipes.face_fusion.recipe import FaceFusionRecipe
from fusionray.training.config import EngineConfig, ParallelConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.parallel.ddp import DDP
from fusionray.training.engine.state import state_tensors
from fusionray.training.engine.step_report import StepReport
from tests.support.tiny_fusion import SEEING, build_config, build_pairs, build_recipe
from tests.training.engine.parallel.two_ranks import CPU

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "overlapped": {"strategy": "ddp", "overlap": True, "bucket_megabytes": 0.01},
    "fp16": {"strategy": "ddp", "compression": "fp16"},
    "bf16": {"strategy": "ddp", "compression": "bf16", "overlap": True},
    # A rank so low that networks as small as these are compressed at all.
    "powersgd": {"strategy": "ddp", "compression": "powersgd", "powersgd_rank": 4},
    "zero": {"strategy": "zero"},
    "zero_overlapped": {"strategy": "zero", "overlap": True},
    "fsdp": {"strategy": "fsdp", "shard_from_parameters": 0},
    "fsdp_bf16": {"strategy": "fsdp", "shard_from_parameters": 0, "compression": "bf16"},
}


def train_by_strategy(rank: int) -> dict[str, Any]:
    """Train under each strategy, one after the other; return what this rank saw."""
    return {
        "strategies": {name: train_with(rank, ParallelConfig(**chosen)) for name, chosen in STRATEGIES.items()},
        "sgd": {name: train_with(rank, ParallelConfig(**STRATEGIES[name]), "sgd") for name in ("ddp", "fsdp")},
        "muon": {name: train_with(rank, ParallelConfig(strategy=name), "muon") for name in ("ddp", "zero")},
    }


def build_seeing_recipe(kind: str = "adamw") -> FaceFusionRecipe:
    """Build the recipe with everything that a generator can have."""
    return build_recipe(build_config(generator=SEEING, generator_optimizer={"kind": kind}))


def train_with(rank: int, parallel: ParallelConfig, kind: str = "adamw") -> dict[str, Any]:
    """The real recipe under one strategy; a checkpoint in the middle goes through other engines."""
    config = EngineConfig(global_batch=8, batch_size=3, precision="fp32", ema_half_life_images=8, parallel=parallel)
    engine = Engine(build_seeing_recipe(kind), config, total_images=64, device=CPU)
    losses, norms = [], []
    for step in range(4):
        report = engine.step(build_pairs(4, seed=100 * rank + 10 * step, size=SEEING.size))
        losses.append(report.losses)
        norms.append(report.grad_norms)
    networks = engine.inference_networks()
    tensors = state_tensors(engine)
    errors = [count_errors(engine)]
    engine.nonfinite_steps.add(StepReport({}, {"generator": torch.tensor(torch.nan)}, {}))
    engine.settle()
    errors.append(count_errors(engine))
    return {
        "errors": errors,
        "losses": losses,
        "norms": norms,
        "kinds": {name: type(wrapped).__name__ for name, wrapped in engine.wrapped.items()},
        "described": engine.describe(),
        "generator": {key: value.clone() for key, value in networks["generator"].state_dict().items()},
        # What this rank alone has to keep, in numbers.
        "held": sum(
            (value.to_local() if isinstance(value, DTensor) else value).numel()
            for name, value in tensors.items()
            if name.startswith("optimizers.generator.")
        ),
    }


def count_errors(engine: Engine) -> int:
    """Count the buckets of which PowerSGD remembers what it left out."""
    states = [wrapped.powersgd for wrapped in engine.wrapped.values() if isinstance(wrapped, DDP)]
    return sum(len(state.error_dict) for state in states if state is not None)
