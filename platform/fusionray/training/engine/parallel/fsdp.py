"""Sharded parameters: FSDP2, with passes that send nothing while the memory is tried out."""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fusionray.checkpoint.sharding import full_tensor
from fusionray.nets.blocks import ActivationCheckpointedBlock
from fusionray.training.config import ParallelConfig
from fusionray.training.engine.parallel.single_rank import SingleRank
from fusionray.training.engine.precision import REDUCED_DTYPES


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
