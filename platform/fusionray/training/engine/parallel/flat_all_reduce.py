"""Replicas whose gradients are averaged after the backward pass: where both would compete for the same cores."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from fusionray.training.config import ParallelConfig
from fusionray.training.engine.parallel.gradient_average import average
from fusionray.training.engine.parallel.single_rank import SingleRank
from fusionray.training.engine.precision import REDUCED_DTYPES


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
