"""Optimisers: build them, skip steps with non-finite gradients, name the tensors of their state."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.checkpoint.sharding import is_sharded
from fusionray.recipes.recipe import OptimizerConfig
from fusionray.training.engine.optimizers.eager import EagerAdamW, EagerSGD
from fusionray.training.engine.optimizers.muon import ORTHOGONAL, MatrixDivision, Muon, is_matrix


def build_optimizer(
    network: nn.Module,
    config: OptimizerConfig,
    *,
    dtype: torch.dtype = torch.float32,
    sharded: bool = False,
    division: MatrixDivision | None = None,
) -> torch.optim.Optimizer:
    """Build an optimiser; gains, biases and norms are not decayed.

    `dtype` is what matrices are multiplied in where a kind multiplies any, and `division` how ranks divide that.
    `sharded`: each rank keeps a part of the state, and steps the parameters of that part.
    """
    groups = group_parameters(network, config)
    # Fused: one pass over memory, and the kernel can skip a step without the host.
    if config.kind == "sgd":
        kind: Any = EagerSGD
        # torch has no fused kernel of it for parameters that FSDP shards.
        fused = not any(is_sharded(parameter) for parameter in network.parameters())
        settings: dict[str, Any] = {"lr": config.base_lr, "momentum": config.momentum, "fused": fused}
    else:
        kind = EagerAdamW
        settings = {"lr": config.base_lr, "betas": config.betas, "fused": True}
        if config.kind == "muon":
            kind = Muon
            settings |= {"momentum": config.momentum, "rate": config.muon_rate, "dtype": dtype}
            settings["division"] = None if sharded else division
    if sharded:
        return build_sharded(groups, kind, settings)
    optimizer: torch.optim.Optimizer = kind(groups, **settings)
    return optimizer


def group_parameters(network: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Group parameters by weight decay, and by whether they are stepped as matrices."""
    chosen: dict[tuple[float, bool], list[Tensor]] = {}
    for parameter in network.parameters():
        decay = config.weight_decay if parameter.ndim > 1 else 0.0
        chosen.setdefault((decay, config.kind == "muon" and is_matrix(parameter)), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, ORTHOGONAL: orthogonal}
        for (decay, orthogonal), parameters in chosen.items()
    ]


def count_states(network: nn.Module, config: OptimizerConfig) -> float:
    """Count the values that an optimiser keeps for each parameter of a network, on average."""
    if config.kind == "sgd":
        return 1.0 if config.momentum else 0.0
    sizes = {parameter: parameter.numel() for parameter in network.parameters()}
    stepped_whole = sum(size for parameter, size in sizes.items() if config.kind == "muon" and is_matrix(parameter))
    # One momentum for a matrix under muon; two moments for everything that adamw steps.
    return 2.0 - stepped_whole / max(1, sum(sizes.values()))


def build_sharded(groups: list[dict[str, Any]], kind: Any, settings: dict[str, Any]) -> torch.optim.Optimizer:
    with warnings.catch_warnings():
        # Importing this package compiles scripts, for which torch emits a warning of its own.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **settings)


def local(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimiser that holds this rank's states."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optim", optimizer)
    return inner


def step_if(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, bad: Tensor) -> None:
    """Step unless `bad` (0 or 1, on the device) is set; with a fused kernel the host does not wait to know."""
    inner: Any = local(optimizer)
    if scaler.is_enabled():
        # The norm may overflow although every gradient is finite; a skipped step must lower the loss scale too.
        for found in scaler._found_inf_per_device(optimizer).values():
            found.copy_(bad)
    if not inner.param_groups[0].get("fused"):
        if not bool(bad):
            optimizer.step()
        return
    inner.grad_scale, inner.found_inf = None, bad
    try:
        optimizer.step()
    finally:
        del inner.grad_scale, inner.found_inf


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """Return the states that this rank holds, as `<parameter>.<state>`."""
    return {
        f"{names[parameter]}.{key}": value
        for parameter, state in local(optimizer).state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


@torch.no_grad()
def create_states(optimizer: torch.optim.Optimizer) -> None:
    """Create missing states, so that a checkpoint can be loaded into them or their memory can be measured.

    Parameters and existing states do not change. All ranks must call it: a sharded optimiser broadcasts parameters,
    also if this rank owns none of them.
    """
    groups, states = optimizer.param_groups, local(optimizer).state
    missing = [parameter for group in groups for parameter in group["params"] if parameter not in states]
    rates = [(group["lr"], group["weight_decay"]) for group in groups]
    gradients = [[parameter.grad for parameter in group["params"]] for group in groups]
    for group in groups:
        group["lr"] = group["weight_decay"] = 0.0
        for parameter in group["params"]:
            parameter.grad = None if parameter in states else torch.zeros_like(parameter)
    optimizer.step()
    for group, (rate, decay), kept in zip(groups, rates, gradients, strict=True):
        group["lr"], group["weight_decay"] = rate, decay
        for parameter, gradient in zip(group["params"], kept, strict=True):
            parameter.grad = gradient
    for parameter in missing:
        # As before any step: Adam divides by what its moments miss so far, by the number of steps.
        if "step" in states.get(parameter, {}):
            states[parameter]["step"].zero_()
