"""The memory plan: strategy and batch size of each worker, estimated from a footprint instead of trials."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fusionray.training.config import TrainConfig
from fusionray.training.dry_run.footprint import Footprint
from fusionray.training.dry_run.memory_estimate import MemoryEstimate, estimate_memory, largest_fit
from fusionray.training.engine.memory import even_chunks, memory_limit
from fusionray.training.engine.parallel.strategies import StrategyName, choose_strategy

STRATEGIES: tuple[StrategyName, ...] = ("ddp", "zero", "fsdp")
# Memory of a process relative to its tensors: heap that glibc does not return, work space of kernels. Measured on a
# CPU as 1.3 to 1.5 (1.0 to 1.1 with MALLOC_MMAP_THRESHOLD_=65536); assumed for GPUs.
MEMORY_FACTOR = {"cpu": 1.5, "cuda": 1.1}
# With one worker all strategies are equal: they are compared for a node with this many GPUs.
COMPARED_RANKS = 8
# Limit of the batch-size search.
MOST_IMAGES = 1024


@dataclass(frozen=True)
class MemoryPlan:
    """The resolved plan; `batch_size` 0: not even one image is estimated to fit.

    `by_strategy`: memory of each of `compared_ranks` workers.
    """

    num_ranks: int
    limit_bytes: int
    strategy: StrategyName
    reason: str
    global_batch: int
    local_batch_images: int
    batch_size: int
    estimate: MemoryEstimate
    compared_ranks: int
    by_strategy: dict[StrategyName, MemoryEstimate]


def make_plan(config: TrainConfig, footprint: Footprint, device: torch.device) -> MemoryPlan:
    """Choose strategy and batch as the run would, from estimates instead of trials."""
    engine, num_ranks = config.engine, config.workers.num_workers
    limit = memory_limit(device, engine.memory_share, engine.memory_gib, num_ranks if device.type == "cpu" else 1)
    strategy, reason = choose_strategy(engine.parallel, footprint.trained_parameters, num_ranks, limit)
    room = int(limit / MEMORY_FACTOR[device.type])
    global_batch = engine.global_batch if isinstance(engine.global_batch, int) else 0
    local_batch_images = -(-global_batch // num_ranks)
    if isinstance(engine.batch_size, int):
        batch_size = min(engine.batch_size, local_batch_images or engine.batch_size)
    elif engine.batch_size == "auto" or not local_batch_images:
        batch_size = largest_fit(
            footprint,
            limit_bytes=room,
            most=local_batch_images or MOST_IMAGES,
            local_batch_images=local_batch_images or None,
            strategy=strategy,
            num_ranks=num_ranks,
            parallel=engine.parallel,
        )
    else:
        batch_size = local_batch_images
    local_batch_images = local_batch_images or max(1, batch_size)
    # As in the engine: the fewest, most equal parts of a local batch.
    batch_size = even_chunks(local_batch_images, batch_size) if batch_size else 0

    def estimate(name: StrategyName, ranks: int) -> MemoryEstimate:
        return estimate_memory(
            footprint,
            batch_size=max(1, batch_size),
            local_batch_images=local_batch_images,
            strategy=name,
            num_ranks=ranks,
            parallel=engine.parallel,
        )

    compared = num_ranks if num_ranks > 1 else COMPARED_RANKS
    return MemoryPlan(
        num_ranks=num_ranks,
        limit_bytes=limit,
        strategy=strategy,
        reason=reason,
        global_batch=global_batch or local_batch_images * num_ranks,
        local_batch_images=local_batch_images,
        batch_size=batch_size,
        estimate=estimate(strategy, num_ranks),
        compared_ranks=compared,
        by_strategy={name: estimate(name, compared) for name in STRATEGIES},
    )
