"""How much memory a worker will take, from the footprint of one small step: by batch size, strategy and ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from fusionray.training.config import ParallelConfig
from fusionray.training.dry_run.footprint import FLOAT_BYTES, Footprint, NetworkFootprint
from fusionray.training.engine.parallel import StrategyName


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one worker, of its tensors alone: libraries, CUDA context and kernels' work space come on top."""

    parameters: int
    gradients: int
    optimizer: int
    averages: int
    frozen: int
    exchange: int
    activations: int
    inputs: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class ParallelLayout:
    """Which part of a network's tensors lies on one rank, and what sharing itself needs."""

    parameters: int
    gradients: int
    optimizer: int
    averages: int
    exchange: int


def estimate_memory(
    footprint: Footprint,
    *,
    batch_size: int,
    share_images: int,
    strategy: StrategyName,
    num_ranks: int,
    parallel: ParallelConfig,
) -> MemoryEstimate:
    """Estimate what one of `num_ranks` workers holds at its fullest moment.

    `batch_size`: images computed at once; `share_images`: images of a step, which stay prepared until it ends.
    """
    parts = [share(network, strategy, num_ranks, parallel) for network in footprint.networks.values()]
    return MemoryEstimate(
        parameters=sum(part.parameters for part in parts),
        gradients=sum(part.gradients for part in parts),
        optimizer=sum(part.optimizer for part in parts),
        averages=sum(part.averages for part in parts),
        frozen=footprint.frozen_bytes,
        exchange=sum(part.exchange for part in parts),
        activations=max(int(phase.peak_bytes * batch_size) + phase.fixed_bytes for phase in footprint.phases),
        inputs=int(footprint.input_bytes * share_images),
    )


def share(
    network: NetworkFootprint, strategy: StrategyName, num_ranks: int, parallel: ParallelConfig
) -> ParallelLayout:
    """Divide a network among the ranks as the strategy does."""
    whole = network.parameters * FLOAT_BYTES
    states, average = int(whole * network.states), whole * network.averaged
    if num_ranks == 1:
        return ParallelLayout(whole, whole, states, average, 0)
    kept_whole = network.stays_whole or network.parameters < parallel.shard_from_parameters
    if strategy == "fsdp" and not kept_whole:
        part = -(-whole // num_ranks)
        # The unit at work and the next one are gathered while they are computed.
        gathered = 2 * network.largest_unit * FLOAT_BYTES
        return ParallelLayout(part, part, int(part * network.states), part * network.averaged, gathered)
    if strategy == "zero":
        states = -(-states // num_ranks)
    return ParallelLayout(whole, whole, states, average, exchange_bytes(whole, parallel))


def exchange_bytes(gradient_bytes: int, parallel: ParallelConfig) -> int:
    """Return what the exchange of gradients holds beside them, which are views of its buckets."""
    extra: dict[Literal["none", "fp16", "bf16", "powersgd"], int] = {
        "none": 0,
        "fp16": gradient_bytes // 2,
        "bf16": gradient_bytes // 2,
        # The error that was left out of this exchange is added to the next one.
        "powersgd": gradient_bytes,
    }
    return extra[parallel.compression]


def largest_fit(
    footprint: Footprint,
    *,
    limit_bytes: int,
    most: int,
    share_images: int | None,
    strategy: StrategyName,
    num_ranks: int,
    parallel: ParallelConfig,
) -> int:
    """Return the largest batch size up to `most` that is estimated to fit, 0 if none does.

    `share_images` None: a share is one batch, and grows with it.
    """
    for size in range(most, 0, -1):
        estimate = estimate_memory(
            footprint,
            batch_size=size,
            share_images=share_images or size,
            strategy=strategy,
            num_ranks=num_ranks,
            parallel=parallel,
        )
        if estimate.total <= limit_bytes:
            return size
    return 0
