"""Set up a recipe's networks on one rank: move them to its device and wrap them for the process group."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fusionray.nets.blocks import set_activation_checkpointing
from fusionray.recipes.recipe import Recipe
from fusionray.training.config import EngineConfig
from fusionray.training.engine.parallel.single_rank import SingleRank
from fusionray.training.engine.parallel.strategies import wrap_network
from fusionray.training.engine.resolve import ResolvedEngine

# Graphs of a network before torch.compile leaves it eager for ever: for each batch size one with gradients of the
# weights, one with those of the input alone and one with none. Torch's own limit of 8 ends at the third size.
MAX_GRAPHS = 64


def place_networks(
    recipe: Recipe[Any], *, config: EngineConfig, chosen: ResolvedEngine, device: torch.device
) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Move all modules of a recipe to a device; return the networks to train and the EMA networks, by name."""
    if chosen.compile:
        # A second of imports, which other runs save.
        from torch._dynamo import config as compiler

        compiler.recompile_limit = MAX_GRAPHS

    def place(module: nn.Module) -> nn.Module:
        # The memory format in which the device computes convolutions fastest.
        layout = torch.channels_last if chosen.channels_last else torch.contiguous_format
        return module.to(device).to(memory_format=layout)  # type: ignore[call-overload, no-any-return]

    for module in (*recipe.frozen.values(), *recipe.adaptive.values()):
        place(module).eval().requires_grad_(False)
        # Gradients pass through the frozen encoder too, so its activations are kept like those of any network.
        set_activation_checkpointing(module, config.activation_checkpointing)
    networks = {name: place(network) for name, network in recipe.networks.items()}
    ema_networks = {name: copy.deepcopy(networks[name]).eval().requires_grad_(False) for name in recipe.ema_names}
    for network in networks.values():
        set_activation_checkpointing(network, config.activation_checkpointing)
        if chosen.compile:
            network.compile(dynamic=False)
    return networks, ema_networks


def wrap_networks(
    recipe: Recipe[Any],
    networks: Mapping[str, nn.Module],
    ema_networks: Mapping[str, nn.Module],
    *,
    config: EngineConfig,
    chosen: ResolvedEngine,
    device: torch.device,
) -> dict[str, SingleRank]:
    """Wrap networks, with their EMA networks, for the process group.

    One wrapper per network: a wrapper around several would wait for gradients of those that are not being trained.
    """
    wrapped = {}
    for name, network in networks.items():
        phases = [phase for phase in recipe.phases if phase.trains == name]
        wrapped[name] = wrap_network(
            chosen.strategy,
            network,
            ema_networks.get(name),
            config.parallel,
            device,
            overlap=chosen.overlap,
            one_graph=len(phases) == 1,
            second_order=any(phase.second_order for phase in phases),
        )
    return wrapped
