"""Replicas whose gradients torch's wrapper averages while it computes them, bucket by bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fusionray.training.config import ParallelConfig
from fusionray.training.engine.parallel.gradient_average import average_bucket
from fusionray.training.engine.parallel.single_rank import SingleRank
from fusionray.training.engine.precision import REDUCED_DTYPES


class DDP(SingleRank):
    """Replicas whose gradients DistributedDataParallel averages during the backward pass."""

    overlaps = True

    def __init__(self, network: nn.Module, config: ParallelConfig, device: torch.device, *, static: bool) -> None:
        super().__init__(network)
        self.needs_dry_pass = not static
        self.wrapper = DistributedDataParallel(
            network,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=config.bucket_megabytes,
            gradient_as_bucket_view=True,
            static_graph=static,
            # Each rank keeps its own running statistics, and checkpoints hold those of rank 0: a forward pass without
            # exchange sends nothing.
            forward_sync_buffers=False,
        )
        self.module = self.wrapper
        self.powersgd: Any = None
        if config.compression == "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

            self.powersgd = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=config.powersgd_rank,
                # The wrapper rebuilds its buckets once after the first step: compress from the third on.
                start_powerSGD_iter=3,
            )
            self.wrapper.register_comm_hook(self.powersgd, self.timed(powerSGD_hook.powerSGD_hook))
        else:
            dtype = REDUCED_DTYPES.get(config.compression, torch.float32)
            self.wrapper.register_comm_hook(dtype, self.timed(average_bucket))

    def timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Report to `overlapped_span`, if it is set, how long the exchange of each bucket takes."""

        def run(state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
            ended = self.overlapped_span("communication") if self.overlapped_span else None
            future: torch.futures.Future[Any] = hook(state, bucket)
            if ended is None:
                return future

            def finish(done: torch.futures.Future[Any]) -> Tensor:
                ended()
                value: Tensor = done.value()
                return value

            return future.then(finish)

        # The wrapper compares annotations with its own types, and postponed ones are strings.
        run.__annotations__.clear()
        return run

    def accumulating(self) -> contextlib.AbstractContextManager[Any]:
        return self.wrapper.no_sync()

    @contextlib.contextmanager
    def isolated(self) -> Any:
        # The wrapper's forward pass sends its buckets' new order to all ranks once, after the first exchange.
        self.module = self.network
        try:
            yield
        finally:
            self.module = self.wrapper

    def reset(self) -> None:
        if self.powersgd is not None:
            # P and Q as well: each exchange starts from those of the one before, so that NaN would stay in them.
            for kept in (self.powersgd.error_dict, self.powersgd.p_memory_dict, self.powersgd.q_memory_dict):
                kept.clear()
