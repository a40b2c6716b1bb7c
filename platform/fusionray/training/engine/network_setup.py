"""Putting a recipe's networks to work on one rank: placed on its device, shared with the others."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fusionray.nets.blocks import recompute_activations
from fusionray.recipes.recipe import Recipe
from fusionray.training.config import EngineConfig
from fusionray.training.engine.parallel import SingleRank, share_network
from fusionray.training.engine.resolve import ResolvedEngine


def place_networks(
    recipe: Recipe[Any], *, config: EngineConfig, chosen: ResolvedEngine, device: torch.device
) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Move all modules of a recipe to a device; returns the networks to train, and copies to average some of them."""

    def place(module: nn.Module) -> nn.Module:
        # The layout of convolutions is the one that the device computes fastest.
        layout = torch.channels_last if chosen.channels_last else torch.contiguous_format
        return module.to(device).to(memory_format=layout)  # type: ignore[call-overload, no-any-return]

    for module in (*recipe.frozen.values(), *recipe.adaptive.values()):
        place(module).eval().requires_grad_(False)
        # Gradients pass through the frozen encoder, too: its activations are kept like any other.
        recompute_activations(module, config.recompute)
    networks = {name: place(network) for name, network in recipe.networks.items()}
    averages = {name: copy.deepcopy(networks[name]).eval().requires_grad_(False) for name in recipe.averaged}
    for network in networks.values():
        recompute_activations(network, config.recompute)
        if chosen.compile:
            network.compile(dynamic=False)
    return networks, averages


def share_networks(
    recipe: Recipe[Any],
    networks: Mapping[str, nn.Module],
    averages: Mapping[str, nn.Module],
    *,
    config: EngineConfig,
    chosen: ResolvedEngine,
    device: torch.device,
) -> dict[str, SingleRank]:
    """Share networks and their averages between the ranks.

    One wrapper a network: a wrapper around several would wait for gradients of those that do not train now.
    """
    wrapped = {}
    for name, network in networks.items():
        phases = [phase for phase in recipe.phases if phase.trains == name]
        wrapped[name] = share_network(
            chosen.strategy,
            network,
            averages.get(name),
            config.parallel,
            device,
            overlap=chosen.overlap,
            one_graph=len(phases) == 1,
            second_order=any(phase.second_order for phase in phases),
        )
    return wrapped
