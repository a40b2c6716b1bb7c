"""What two ranks exchange beside a plain average: compressed gradients, orthogonal steps; run in children."""

from __future__ import annotations

from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusionray.recipes.recipe import Losses, OptimizerConfig, Phase, PhaseInput
from fusionray.training.config import EngineConfig, ParallelConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.optimizers.build import build_optimizer
from fusionray.training.engine.optimizers.muon import MatrixDivision
from fusionray.training.engine.parallel.gradient_average import average
from tests.support.tiny_fusion import build_config, build_pairs, build_recipe
from tests.support.toy_recipe import CompilableRecipe, Numbers, ToyRecipe, draw_numbers

NUM_RANKS = 2
CPU = torch.device("cpu")
# What rank r sends is this times r + 1.
GRADIENTS = {"tiny": 3e-9, "usual": 2e-6, "large": 5e6, "zero": 0.0}
MUON = OptimizerConfig(kind="muon", base_lr=0.01, muon_rate=2.0, betas=(0.5, 0.99), momentum=0.9, weight_decay=0.01)


def exchange(rank: int) -> dict[str, Any]:
    """Do everything below, one after the other; return what this rank saw."""
    return {
        "averages": {name: average_in_fp16(rank, size) for name, size in GRADIENTS.items()},
        "spread": average_in_fp16(rank, 1.0, spread=1e-6),
        "overlapped_fp16": train_on_tiny_gradients(rank, ParallelConfig(compression="fp16", overlap=True)),
        "overlapped": train_on_tiny_gradients(rank, ParallelConfig(overlap=True)),
        "powersgd": {lag: train_over_a_bad_step(rank, lag) for lag in (0, 1)},
        "muon": step_matrices(MatrixDivision(rank, NUM_RANKS)),
        "bad_muon": train_muon_over_a_bad_step(rank),
        "graphs": count_layers_of_graphs(rank),
        "adam_steps": count_steps_before_a_dry_pass(rank),
    }


def average_in_fp16(rank: int, size: float, spread: float = 0.5) -> list[float]:
    """Average two numbers, the second `spread` times as large as the first."""
    values = torch.tensor([1.0, spread]) * size * (rank + 1)
    average(values, torch.float16)
    return [float(value) for value in values]


def build_toy(parallel: ParallelConfig, kind: str = "sgd", **settings: Any) -> Engine:
    settings = {"global_batch": 16, "precision": "fp32", "clip_norm": 1e6, **settings}
    return Engine(ToyRecipe(kind), EngineConfig(parallel=parallel, **settings), total_images=1600, device=CPU)


def train_on_tiny_gradients(rank: int, parallel: ParallelConfig) -> dict[str, float]:
    """Take a step on numbers so small that gradients are of the order of 1e-8; return their norms."""
    engine = build_toy(parallel)
    for network in engine.networks.values():
        for parameter in network.parameters():
            parameter.data.mul_(1e-8)
    return engine.step(draw_numbers(8, seed=rank).map(lambda value: value * 1e-8)).grad_norms


def train_over_a_bad_step(rank: int, lag: int) -> dict[str, Any]:
    """Meet a damaged row after PowerSGD has begun; the host learns of it `lag` steps later, as on a GPU."""
    engine = build_toy(ParallelConfig(compression="powersgd", powersgd_rank=1))
    settle = engine.settle
    engine.settle = lambda **_: settle(lag=lag)  # type: ignore[method-assign]
    skipped = []
    for step in range(12):
        batch = draw_numbers(8, seed=2 * step + rank)
        if step == 6 and rank == 1:
            batch.first[0] = batch.second[0] = torch.nan
        skipped.append(bool(engine.step(batch).skipped))
    return {"skipped": skipped, "parameters": values_of(engine)}


def values_of(engine: Engine) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": value
        for name, network in engine.networks.items()
        for key, value in network.state_dict().items()
    }


def step_matrices(division: MatrixDivision | None) -> dict[str, Tensor]:
    """Step convolutions of three shapes, of which one is by far the most expensive, and a bias."""
    torch.manual_seed(0)
    network = nn.ModuleList([nn.Conv2d(16, 40, 3), nn.Conv2d(24, 16, 1), nn.Conv2d(24, 16, 1), nn.Conv2d(8, 8, 1)])
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = build_optimizer(network, MUON, division=division)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        for parameter in network.parameters():
            parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=generator))
        optimizer.step()
    momenta = {
        f"momentum.{name}": optimizer.state[parameter].get("momentum", torch.zeros(()))
        for name, parameter in network.named_parameters()
    }
    return {**network.state_dict(), **momenta}


def train_muon_over_a_bad_step(rank: int) -> dict[str, Any]:
    """Let rank 1 meet a damaged row in the second of three steps, with matrices that the ranks divide."""
    config = EngineConfig(global_batch=4, precision="bf16", ema_half_life_images=8)
    engine = Engine(
        build_recipe(build_config(generator_optimizer={"kind": "muon"})), config, total_images=64, device=CPU
    )
    skipped = []
    for step in range(3):
        pairs = build_pairs(2, seed=10 * step + rank)
        damage = torch.nan if step == 1 and rank == 1 else 1.0
        parameter = next(engine.networks["generator"].parameters()).requires_grad_(True)
        hook = parameter.register_hook(partial(torch.mul, torch.tensor(damage)))
        skipped.append("generator" in engine.step(pairs).skipped)
        hook.remove()
    return {"skipped": skipped, "parameters": values_of(engine)}


def count_layers_of_graphs(rank: int) -> list[int]:
    """Take compiled steps with the smallest buckets, which the middle layer fills; return the layers of each graph."""
    layers: list[int] = []

    def record(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        layers.append(sum(target is torch.nn.functional.linear for target in targets))
        return graph.forward

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=record))
        parallel = ParallelConfig(overlap=True, bucket_megabytes=1)
        config = EngineConfig(global_batch=16, batch_size=4, precision="fp32", compile=True, parallel=parallel)
        recipe = CompilableRecipe(width=600)
        recipe.phases = (Phase("fit", "first", fit_alone),)
        engine = Engine(recipe, config, total_images=1600, device=CPU)
        for step in range(2):
            engine.step(draw_numbers(8, seed=step))
    return layers


def fit_alone(step: PhaseInput[Numbers]) -> Losses:
    loss = (step.networks["first"](step.batch.x) - step.batch.first).square().mean()
    return Losses(loss, {"first": loss})


def count_steps_before_a_dry_pass(rank: int) -> dict[str, list[float]]:
    """Return the steps that Adam has counted when the first pass begins, and after two steps."""
    engine = build_toy(ParallelConfig(overlap=True), "adamw")

    def count() -> list[float]:
        return [float(state["step"]) for state in engine.optimizers["first"].state.values()]

    before = count()
    for step in range(2):
        engine.step(draw_numbers(8, seed=step))
    return {"before": before, "after": count()}
