"""The footprint of a training step: parameters, FLOPs, memory, measured on one small step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.nets.blocks import ActivationCheckpointedBlock, set_activation_checkpointing
from fusionray.recipes.recipe import Phase, PhaseInput, Recipe
from fusionray.training.dry_run.operation_tracker import OperationTracker, count_bytes
from fusionray.training.engine.optimizers.build import count_states
from fusionray.training.engine.precision import Precision
from fusionray.types import Batch

FLOAT_BYTES = 4


@dataclass(frozen=True)
class PhaseFootprint:
    """Cost of one phase. `flops`, `activation_bytes` and `peak_bytes` are per sample.

    `flops`: of forward and backward pass. `activation_bytes`: tensors at the end of the forward pass; `peak_bytes`: the
    most at any time. `batch_independent_bytes`: peak of the tensors that do not grow with the batch, without gradients.
    """

    name: str
    trains: str
    interval: int
    flops: float
    activation_bytes: float
    peak_bytes: float
    batch_independent_bytes: int


@dataclass(frozen=True)
class NetworkFootprint:
    """Parameters of a trained network; `largest_fsdp_unit`: the largest number of parameters that FSDP gathers at once.

    `optimizer_values_per_parameter`: values that the optimiser keeps for each parameter, on average. `has_ema`: it has
    an EMA network. `cannot_shard`: a phase differentiates its gradients, which sharded parameters do not support.
    """

    parameters: int
    optimizer_values_per_parameter: float
    has_ema: bool
    largest_fsdp_unit: int
    cannot_shard: bool


@dataclass(frozen=True)
class Footprint:
    """Costs of one training step of a recipe.

    `networks`: trained networks by name. `frozen`: number of parameters of frozen networks, by name; `frozen_bytes`: of
    these parameters and of buffers. `input_bytes`: per sample, of the prepared batch and of tensors that phases share.
    """

    networks: Mapping[str, NetworkFootprint]
    frozen: Mapping[str, int]
    frozen_bytes: int
    phases: tuple[PhaseFootprint, ...]
    input_bytes: float

    @property
    def trained_parameters(self) -> int:
        """Parameters of all trained networks."""
        return sum(network.parameters for network in self.networks.values())

    @property
    def flops(self) -> float:
        """FLOPs of a training step per sample; a phase with an interval counts in proportion."""
        return sum(phase.flops / phase.interval for phase in self.phases)

    @property
    def activation_bytes(self) -> float:
        """Bytes per sample kept for the backward pass, in the phase that keeps most."""
        return max(phase.activation_bytes for phase in self.phases)


def measure_step(
    recipe: Recipe[Any], batch: Batch, precision: Precision, *, activation_checkpointing: bool = False
) -> Footprint:
    """Run every phase of a recipe once, without changing its networks, and measure its costs.

    `batch`: uint8 crops on the device of the networks; a few images suffice, since costs grow linearly with the batch.
    Gradients are cleared afterwards.
    """
    size = len(batch)
    parameters_and_buffers = [
        tensor
        for network in (*recipe.networks.values(), *recipe.frozen.values(), *recipe.adaptive.values())
        for tensor in (*network.parameters(), *network.buffers())
    ]
    for network in recipe.frozen.values():
        network.eval().requires_grad_(False)
    for network in (*recipe.networks.values(), *recipe.frozen.values()):
        set_activation_checkpointing(network, activation_checkpointing)
    with torch.no_grad():
        prepared = recipe.prepare(batch)
    shared: dict[str, Tensor] = {}
    phases = []
    with preserve_statistics(recipe.networks.values()):
        for phase in recipe.phases:
            for name, network in recipe.networks.items():
                network.requires_grad_(name == phase.trains)
            seen = PhaseInput(recipe.networks, recipe.frozen, prepared, shared)
            phases.append(measure_phase(phase, seen, OperationTracker(parameters_and_buffers), precision, size))
    for network in recipe.networks.values():
        network.requires_grad_(True)
    second_order = {phase.trains for phase in recipe.phases if phase.second_order}
    return Footprint(
        networks={
            name: measure_network(
                network,
                optimizer_values_per_parameter=count_states(network, recipe.optimizers[name]),
                has_ema=name in recipe.ema_names,
                cannot_shard=name in second_order,
            )
            for name, network in recipe.networks.items()
        },
        frozen={
            name: sum(parameter.numel() for parameter in network.parameters())
            for name, network in recipe.frozen.items()
            if any(True for _ in network.parameters())
        },
        frozen_bytes=sum(
            tensor.nbytes
            for network in recipe.frozen.values()
            for tensor in (*network.parameters(), *network.buffers())
        ),
        phases=tuple(phases),
        input_bytes=count_bytes([prepared, *shared.values()]) / size,
    )


def measure_phase(
    phase: Phase[Any], seen: PhaseInput[Any], tracker: OperationTracker, precision: Precision, size: int
) -> PhaseFootprint:
    """Run one phase forward and backward, and measure it with `tracker`."""
    trained = seen.networks[phase.trains]
    hooks = [
        parameter.register_post_accumulate_grad_hook(tracker.untrack_gradient)  # type: ignore[no-untyped-call]
        for parameter in trained.parameters()
    ]
    try:
        with tracker:
            with precision.autocast():
                losses = phase.loss(seen)
            activation_bytes = tracker.bytes
            losses.total.backward()  # type: ignore[no-untyped-call]
    finally:
        for hook in hooks:
            hook.remove()
        trained.zero_grad(set_to_none=True)
    return PhaseFootprint(
        name=phase.name,
        trains=phase.trains,
        interval=phase.interval,
        flops=tracker.flops / size,
        activation_bytes=activation_bytes / size,
        peak_bytes=tracker.peak_bytes / size,
        batch_independent_bytes=tracker.peak_batch_independent_bytes,
    )


@contextlib.contextmanager
def preserve_statistics(networks: Iterable[nn.Module]) -> Iterator[None]:
    """Restore the running statistics of networks after the block."""
    buffers = [buffer for network in networks for buffer in network.buffers()]
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, kept, strict=True):
            buffer.copy_(value)


def measure_network(
    network: nn.Module, *, optimizer_values_per_parameter: float, has_ema: bool, cannot_shard: bool
) -> NetworkFootprint:
    """Count the parameters of a network and of its largest FSDP unit."""
    total = sum(parameter.numel() for parameter in network.parameters())
    units = [
        sum(parameter.numel() for parameter in module.parameters())
        for module in network.modules()
        if isinstance(module, ActivationCheckpointedBlock)
    ]
    # Parameters outside of all units are gathered together.
    largest_fsdp_unit = max([total - sum(units), *units])
    return NetworkFootprint(total, optimizer_values_per_parameter, has_ema, largest_fsdp_unit, cannot_shard)
