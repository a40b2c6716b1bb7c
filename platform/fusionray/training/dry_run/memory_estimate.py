"""Estimates of a worker's memory from the footprint of one small step, by batch size, strategy and ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from fusionray.training.config import ParallelConfig
from fusionray.training.dry_run.footprint import FLOAT_BYTES, Footprint, NetworkFootprint
from fusionray.training.engine.parallel.strategies import StrategyName


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one worker's tensors, without libraries, CUDA context and work space of kernels."""

    parameters: int
    gradients: int
    optimizer: int
    ema: int
    frozen: int
    exchange: int
    activations: int
    inputs: int

    @property
    def total(self) -> int:
        """The sum of all fields."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class ParallelLayout:
    """Bytes of a network's tensors on one rank, and of the buffers that the strategy needs."""

    parameters: int
    gradients: int
    optimizer: int
    ema: int
    exchange: int


def estimate_memory(
    footprint: Footprint,
    *,
    batch_size: int,
    local_batch_images: int,
    strategy: StrategyName,
    num_ranks: int,
    parallel: ParallelConfig,
) -> MemoryEstimate:
    """Estimate the peak memory of one of `num_ranks` workers.

    `batch_size`: images computed at once; `local_batch_images`: images of a step, which stay prepared until it ends.
    """
    parts = [lay_out(network, strategy, num_ranks, parallel) for network in footprint.networks.values()]
    return MemoryEstimate(
        parameters=sum(part.parameters for part in parts),
        gradients=sum(part.gradients for part in parts),
        optimizer=sum(part.optimizer for part in parts),
        ema=sum(part.ema for part in parts),
        frozen=footprint.frozen_bytes,
        exchange=sum(part.exchange for part in parts),
        activations=max(
            int(phase.peak_bytes * batch_size) + phase.batch_independent_bytes for phase in footprint.phases
        ),
        inputs=int(footprint.input_bytes * local_batch_images),
    )


def lay_out(
    network: NetworkFootprint, strategy: StrategyName, num_ranks: int, parallel: ParallelConfig
) -> ParallelLayout:
    """Return the bytes of a network on each rank under a strategy."""
    whole = network.parameters * FLOAT_BYTES
    states, ema = int(whole * network.optimizer_values_per_parameter), whole * network.has_ema
    if num_ranks == 1:
        return ParallelLayout(whole, whole, states, ema, 0)
    kept_whole = network.cannot_shard or network.parameters < parallel.shard_from_parameters
    if strategy == "fsdp" and not kept_whole:
        part = -(-whole // num_ranks)
        # The present unit and the next one are gathered at once.
        gathered = 2 * network.largest_fsdp_unit * FLOAT_BYTES
        return ParallelLayout(
            part, part, int(part * network.optimizer_values_per_parameter), part * network.has_ema, gathered
        )
    if strategy == "zero":
        states = -(-states // num_ranks)
    return ParallelLayout(whole, whole, states, ema, exchange_bytes(whole, parallel))


def exchange_bytes(gradient_bytes: int, parallel: ParallelConfig) -> int:
    """Return the bytes of the exchange in addition to the gradients, which are views of its buckets."""
    extra: dict[Literal["none", "fp16", "bf16", "powersgd"], int] = {
        "none": 0,
        "fp16": gradient_bytes // 2,
        "bf16": gradient_bytes // 2,
        # The compression error of this exchange is added to the next one.
        "powersgd": gradient_bytes,
    }
    return extra[parallel.compression]


def largest_fit(
    footprint: Footprint,
    *,
    limit_bytes: int,
    most: int,
    local_batch_images: int | None,
    strategy: StrategyName,
    num_ranks: int,
    parallel: ParallelConfig,
) -> int:
    """Return the largest batch size up to `most` that is estimated to fit, 0 if none does.

    `local_batch_images` None: the local batch is computed at once, and equals the batch size.
    """
    for size in range(most, 0, -1):
        estimate = estimate_memory(
            footprint,
            batch_size=size,
            local_batch_images=local_batch_images or size,
            strategy=strategy,
            num_ranks=num_ranks,
            parallel=parallel,
        )
        if estimate.total <= limit_bytes:
            return size
    return 0
