"""Resolve the engine's settings for a device and a number of ranks: replace `auto`, check combinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fusionray.hardware.profiles import HardwareProfile
from fusionray.training.config import EngineConfig, ParallelConfig
from fusionray.training.engine.parallel.strategies import StrategyName, choose_strategy
from fusionray.training.engine.precision import PrecisionName


@dataclass(frozen=True)
class ResolvedEngine:
    """The resolved settings; `overlap`: gradients are exchanged during the backward pass."""

    precision: PrecisionName
    channels_last: bool
    compile: bool
    cuda_graphs: bool
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
    obstacle = find_obstacle_to_graphs(config, strategy, device, num_ranks)
    if config.cuda_graphs is True and obstacle:
        raise ValueError(f"engine.cuda_graphs=true is not possible with {obstacle}; set auto, or false")
    cuda_graphs = bool(config.cuda_graphs) and not obstacle
    chosen = ResolvedEngine(
        precision=profile.precision if config.precision == "auto" else config.precision,
        channels_last=profile.channels_last if config.channels_last == "auto" else config.channels_last,
        # Compiling saves launches too, but a run waits for it for minutes.
        compile=profile.compile and not cuda_graphs if config.compile == "auto" else config.compile,
        cuda_graphs=cuda_graphs,
        strategy=strategy,
        strategy_reason=reason,
        overlap=num_ranks > 1 and not cuda_graphs and wants_overlap(config.parallel, device),
    )
    if num_ranks > 1:
        check_combination(config, chosen)
    return chosen


def find_obstacle_to_graphs(
    config: EngineConfig, strategy: StrategyName, device: torch.device, num_ranks: int
) -> str | None:
    """Return what keeps the passes of a step from being recorded as CUDA graphs; None if nothing does."""
    parallel, in_backward = config.parallel, "exchanges gradients in the backward pass"
    obstacles = {
        "a device other than an NVIDIA GPU": device.type != "cuda" or torch.version.hip is not None,
        "engine.activation_checkpointing=true, which reads the state of random numbers on the host": (
            config.activation_checkpointing
        ),
    }
    if num_ranks > 1:
        obstacles |= {
            "engine.parallel.strategy=fsdp, which exchanges parameters in the passes": strategy == "fsdp",
            f"engine.parallel.overlap=true, which {in_backward}": parallel.overlap is True,
            f"engine.parallel.compression=powersgd, which {in_backward}": parallel.compression == "powersgd",
            f"engine.parallel.static_graph=true, which {in_backward}": parallel.static_graph,
        }
    return next((name for name, stands in obstacles.items() if stands), None)


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
