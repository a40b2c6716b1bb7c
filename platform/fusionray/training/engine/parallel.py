"""Strategies of data parallelism: replicas (ddp), sharded optimiser state (zero), sharded parameters (fsdp).

Gradients are exchanged *during* the backward pass of the last micro-batch, bucket by bucket, if the device can
communicate while it computes (GPUs); or *after* it, in one piece, if both would compete for the same cores. A pass
without exchange can be repeated after an out-of-memory error.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fusionray.checkpoint.sharding import full_tensor
from fusionray.nets.blocks import ActivationCheckpointedBlock, count_parameters
from fusionray.training.config import ParallelConfig
from fusionray.training.engine.gradient_average import average, average_bucket
from fusionray.training.engine.precision import REDUCED_DTYPES

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


class SingleRank:
    """A network on a single rank; base class of the strategies."""

    # `overlaps`: gradients are exchanged during the backward pass. `needs_dry_pass`: the engine first runs passes
    # without exchange, to show that the memory is sufficient.
    overlaps = False
    needs_dry_pass = False

    def __init__(self, network: nn.Module) -> None:
        # Set while gradients are exchanged during the backward pass: it times the exchange (StepTimer.overlapped_span).
        self.overlapped_span: Callable[[str], Callable[[], None]] | None = None
        self.network = network
        self.module: nn.Module = network

    def accumulating(self) -> contextlib.AbstractContextManager[Any]:
        """Accumulate the gradients of a forward and backward pass without exchanging them."""
        return contextlib.nullcontext()

    def isolated(self) -> contextlib.AbstractContextManager[Any]:
        """Compute without any message to another rank: this one may fail alone. The gradients count for nothing."""
        return contextlib.nullcontext()

    def exchange(self) -> None:
        """Average the accumulated gradients over all ranks."""

    def reset(self) -> None:
        """Clear what a compressed exchange keeps from step to step, after non-finite gradients."""

    def gathered(self, network: nn.Module) -> nn.Module:
        """Return `network` with unsharded parameters, for use by one rank alone; all ranks must call it."""
        return network


class FlatAllReduce(SingleRank):
    """Replicas whose gradients are averaged after the backward pass, in one flat all-reduce."""

    def __init__(self, network: nn.Module, config: ParallelConfig) -> None:
        super().__init__(network)
        self.wire = REDUCED_DTYPES.get(config.compression, torch.float32)
        self.parameters = list(network.parameters())
        for value in (*self.parameters, *network.buffers()):
            dist.broadcast(value.detach(), src=0)
        self.flat = torch.zeros(sum(value.numel() for value in self.parameters), device=self.parameters[0].device)
        parts = torch.split(self.flat, [value.numel() for value in self.parameters])
        # In the parameters' own memory layout: optimisers walk through both side by side.
        self.views = [
            part.as_strided(value.shape, value.stride(), part.storage_offset())
            for part, value in zip(parts, self.parameters, strict=True)
        ]

    def exchange(self) -> None:
        missing = [view for view, value in zip(self.views, self.parameters, strict=True) if value.grad is None]
        if missing:
            torch._foreach_zero_(missing)
        pairs = [(view, value.grad) for view, value in zip(self.views, self.parameters, strict=True)]
        kept = [(view, gradient) for view, gradient in pairs if gradient is not None]
        torch._foreach_copy_([view for view, _ in kept], [gradient for _, gradient in kept])
        average(self.flat, self.wire)
        for value, view in zip(self.parameters, self.views, strict=True):
            value.grad = view


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


class AllGather:
    """FSDP's all-gather of parameters, or while `is_local` a stand-in for it that sends nothing."""

    is_local = False

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        if not self.is_local:
            work: dist.Work | None = dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
            return work
        for part in output_tensor.chunk(group.size()):
            # This rank's shard for every other one's, which are as large. FSDP has put it into its place already.
            if part.data_ptr() != input_tensor.data_ptr():
                part.copy_(input_tensor)
        return None


class FSDP(SingleRank):
    """Every rank holds a shard of each parameter; FSDP2 gathers a unit while it is computed."""

    overlaps = True

    def __init__(
        self, network: nn.Module, ema_network: nn.Module | None, config: ParallelConfig, device: torch.device
    ) -> None:
        # A second of imports, which the other strategies save.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        super().__init__(network)
        # On the meta device: a real copy on every rank would cost the memory that sharding saves.
        self.shape = copy.deepcopy(network).to("meta")
        shard = partial(
            fully_shard,
            mesh=init_device_mesh(device.type, (dist.get_world_size(),)),
            mp_policy=MixedPrecisionPolicy(reduce_dtype=REDUCED_DTYPES.get(config.compression)),
        )
        for module in (network, ema_network):
            if module is not None:
                # Shards are slices of contiguous memory; activations keep the layout of the pictures.
                module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
                for unit in module.modules():
                    if isinstance(unit, ActivationCheckpointedBlock):
                        shard(unit)
                shard(module)
        self.gather: Any = AllGather()
        self.units: list[Any] = [module for module in network.modules() if isinstance(module, FSDPModule)]
        for unit in self.units:
            unit.set_custom_all_gather(self.gather)
        # Now, while all parameters require gradients: torch would look in the first forward pass, in which another
        # network may be in training, and then refuse compressed gradients.
        sharded: Any = network
        sharded._get_fsdp_state()._lazy_init()

    @contextlib.contextmanager
    def accumulating(self) -> Any:
        sharded: Any = self.network
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)

    @contextlib.contextmanager
    def isolated(self) -> Any:
        sharded: Any = self.network
        self.gather.is_local = True
        try:
            yield
        finally:
            self.gather.is_local = False
            # Out of memory in the middle of a pass, or not: the next pass starts as the first one did.
            sharded.reset_iter_state()
            for unit in self.units:
                for group in unit._get_fsdp_state()._fsdp_param_groups:
                    for parameter in group.fsdp_params:
                        # Gradients of passes without exchange; torch has no public way to drop them.
                        parameter.unsharded_accumulated_grad = None
                        if hasattr(parameter, "_unsharded_param"):
                            parameter._unsharded_param.grad = None

    @torch.no_grad()
    def gathered(self, network: nn.Module) -> nn.Module:
        plain = copy.deepcopy(self.shape).requires_grad_(False)
        plain = plain.to_empty(device=next(network.parameters()).device)
        mine = [*plain.parameters(), *plain.buffers()]
        for value, shard in zip(mine, [*network.parameters(), *network.buffers()], strict=True):
            value.copy_(full_tensor(shard))
        return plain.eval()


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
