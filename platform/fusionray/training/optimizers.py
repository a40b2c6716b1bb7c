"""Optimisers of networks: building, stepping unless a gradient is not finite, state as named tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.recipes.recipe import OptimizerConfig


def build_optimizer(network: nn.Module, config: OptimizerConfig, *, sharded: bool = False) -> torch.optim.Optimizer:
    """Build an optimiser; gains, biases and norms are not decayed. `sharded`: each rank keeps a part of the state."""
    decayed = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    free = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in ((decayed, config.weight_decay), (free, 0.0))
        if parameters
    ]
    if config.kind == "sgd":
        kind: Any = torch.optim.SGD
        settings: dict[str, Any] = {"lr": config.base_lr, "momentum": config.momentum}
    else:
        kind = torch.optim.AdamW
        # Fused: one pass over memory, and it can leave a step out without asking the host.
        settings = {"lr": config.base_lr, "betas": config.betas, "fused": True}
    if sharded:
        return build_sharded(groups, kind, settings)
    optimizer: torch.optim.Optimizer = kind(groups, **settings)
    return optimizer


def build_sharded(groups: list[dict[str, Any]], kind: Any, settings: dict[str, Any]) -> torch.optim.Optimizer:
    with warnings.catch_warnings():
        # Its package compiles scripts when it is imported, and torch warns of itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **settings)


def local(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimiser that holds this rank's states."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optim", optimizer)
    return inner


def step_if(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, bad: Tensor) -> None:
    """Step unless `bad` (0 or 1, on the device); where the kernel can decide, the host does not wait for it."""
    inner: Any = local(optimizer)
    if scaler.is_enabled():
        # The scaler judged this rank's gradients only; the verdict of all ranks replaces its own.
        for found in scaler._found_inf_per_device(inner).values():
            found.fill_(1.0).mul_(bad)
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
    """Make the states exist, so that a checkpoint can be read into them; parameters stay as they are."""
    groups = optimizer.param_groups
    rates = [(group["lr"], group["weight_decay"]) for group in groups]
    gradients = [[parameter.grad for parameter in group["params"]] for group in groups]
    for group in groups:
        group["lr"] = group["weight_decay"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for group, (rate, decay), kept in zip(groups, rates, gradients, strict=True):
        group["lr"], group["weight_decay"] = rate, decay
        for parameter, gradient in zip(group["params"], kept, strict=True):
            parameter.grad = gradient
