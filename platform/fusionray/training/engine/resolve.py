"""Resolve the engine's settings for a device and a number of ranks: replace `auto`, check combinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fusionray.hardware.profiles import HardwareProfile
from fusionray.training.config import EngineConfig, ParallelConfig
from fusionray.training.engine.parallel import StrategyName, choose_strategy
from fusionray.training.engine.precision import PrecisionName


@dataclass(frozen=True)
class ResolvedEngine:
    """The resolved settings; `overlap`: gradients are exchanged during the backward pass."""

    precision: PrecisionName
    channels_last: bool
    compile: bool
    strategy: StrategyName
    strategy_reason: str
    overlap: bool


def resolve(
    config: EngineConfig,
    profile: HardwareProfile,
    device: torch.device,
    *,
    num_parameters: int,
    num_ranks: int,
    memory_bytes: int,
) -> ResolvedEngine:
    """Resolve the settings for networks with `num_parameters` in all, on ranks with `memory_bytes` each.

    Raises: ValueError for settings that exclude each other.
    """
    strategy, reason = choose_strategy(config.parallel, num_parameters, num_ranks, memory_bytes)
    chosen = ResolvedEngine(
        precision=profile.precision if config.precision == "auto" else config.precision,
        channels_last=profile.channels_last if config.channels_last == "auto" else config.channels_last,
        compile=profile.compile if config.compile == "auto" else config.compile,
        strategy=strategy,
        strategy_reason=reason,
        overlap=num_ranks > 1 and wants_overlap(config.parallel, device),
    )
    if num_ranks > 1:
        check_combination(config, chosen)
    return chosen


def check_optimizers(kinds: Mapping[str, str], chosen: ResolvedEngine) -> None:
    """Refuse optimisers, by network, that the strategy does not support.

    Raises: ValueError.
    """
    for name, kind in kinds.items():
        if kind == "muon" and chosen.strategy == "fsdp":
            raise ValueError(
                f"the {name} uses muon, which needs whole matrices, but engine.parallel.strategy=fsdp shards them; use "
                "strategy zero or ddp, or kind adamw"
            )


def wants_overlap(config: ParallelConfig, device: torch.device) -> bool:
    """Return whether to exchange gradients during the backward pass; `auto`: only on GPUs."""
    if config.overlap != "auto":
        return config.overlap
    # PowerSGD is a hook of torch's wrapper, which exchanges during the backward pass.
    return device.type == "cuda" or config.compression == "powersgd"


def check_combination(config: EngineConfig, chosen: ResolvedEngine) -> None:
    """Refuse settings that are valid alone but not together, for several ranks.

    Raises: ValueError.
    """
    parallel = config.parallel
    if chosen.strategy == "fsdp" and chosen.precision == "fp16":
        raise ValueError(
            "engine.precision=fp16 needs loss scaling, which sharded parameters (fsdp) lack; use bf16, or zero"
        )
    if chosen.strategy == "fsdp" and parallel.compression == "powersgd":
        raise ValueError(
            "engine.parallel.compression=powersgd does not support sharded parameters (fsdp); use bf16, or zero"
        )
    if chosen.strategy == "fsdp" and parallel.compression == "fp16":
        raise ValueError(
            "engine.parallel.compression=fp16 scales gradients by their largest one, which sharded parameters (fsdp) "
            "do not support; use bf16, or zero"
        )
    if parallel.compression == "powersgd" and not chosen.overlap:
        raise ValueError("engine.parallel.compression=powersgd needs engine.parallel.overlap=true, or auto")
    if chosen.compile and chosen.overlap and parallel.bucket_megabytes < 1:
        raise ValueError(
            "engine.parallel.bucket_megabytes must be at least 1 with engine.compile: torch compiles a network in "
            "pieces as large as its buckets, and the first one has 1 MiB"
        )
    if parallel.static_graph and not (
        chosen.overlap and config.batch_size is None and isinstance(config.global_batch, int)
    ):
        # The wrapper also counts gradients of passes without exchange, such as those of the batch-size search, and
        # would silently exchange too early.
        raise ValueError(
            "engine.parallel.static_graph=true needs engine.parallel.overlap=true, no engine.batch_size, and a number "
            "as engine.global_batch: a static graph does not support passes without exchange"
        )
