"""Strategies of data parallelism: replicas (ddp), sharded optimiser state (zero), sharded parameters (fsdp).

Gradients are exchanged *during* the backward pass of the last micro-batch, bucket by bucket, if the device can
communicate while it computes (GPUs); or *after* it, in one piece, if both would compete for the same cores. A pass
without exchange can be repeated after an out-of-memory error.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from fusionray.nets.blocks import count_parameters
from fusionray.training.config import ParallelConfig
from fusionray.training.engine.parallel.ddp import DDP
from fusionray.training.engine.parallel.flat_all_reduce import FlatAllReduce
from fusionray.training.engine.parallel.fsdp import FSDP
from fusionray.training.engine.parallel.single_rank import SingleRank

StrategyName = Literal["ddp", "zero", "fsdp"]
# float32 parameter, gradient, two Adam moments and a moving average.
BYTES_A_PARAMETER = 20
# Largest fraction of a device's memory for replicated state; the rest is for activations.
STATE_SHARE = 0.4


def choose_strategy(
    config: ParallelConfig, num_parameters: int, num_ranks: int, memory_bytes: int
) -> tuple[StrategyName, str]:
    """Choose a strategy and say why: the simplest whose state leaves most of the memory to activations."""
    if num_ranks == 1:
        return "ddp", "a single worker"
    if config.strategy != "auto":
        return config.strategy, "as set"
    state, room = num_parameters * BYTES_A_PARAMETER, memory_bytes * STATE_SHARE
    sizes = f"{state / 2**30:.2f} GiB of state a worker, {memory_bytes / 2**30:.1f} GiB of memory"
    if state <= room:
        return "ddp", f"replicas fit: {sizes}"
    # Parameters, gradients and EMA stay replicated; two of five parts are sharded.
    if state * (3 + 2 / num_ranks) / 5 <= room:
        return "zero", f"sharded optimiser state: {sizes}"
    return "fsdp", f"sharded parameters: {sizes}"


def wrap_network(
    name: StrategyName,
    network: nn.Module,
    ema_network: nn.Module | None,
    config: ParallelConfig,
    device: torch.device,
    *,
    overlap: bool,
    one_graph: bool,
    second_order: bool,
) -> SingleRank:
    """Wrap a network for the process group; its EMA network, if there is one, is sharded the same way.

    `overlap`: exchange gradients during the backward pass. `one_graph`: a single phase trains it, so its graph is
    static. `second_order`: a phase differentiates a gradient, which sharded parameters do not support.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return SingleRank(network)
    if name == "fsdp" and not second_order and count_parameters(network) >= config.shard_from_parameters:
        return FSDP(network, ema_network, config, device)
    if overlap:
        return DDP(network, config, device, static=config.static_graph and one_graph)
    return FlatAllReduce(network, config)
