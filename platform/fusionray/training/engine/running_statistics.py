"""The running statistics of networks, such as those of batch norms: kept, taken back, copied.

They change in the forward pass, where no optimiser can leave a step out.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class RunningStatistics:
    """The buffers of some networks, with their values of a moment to which they can be taken back."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        """Keep the values of now."""
        self.buffers = [buffer for network in networks for buffer in network.buffers()]
        self.kept = [buffer.clone() for buffer in self.buffers]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the values of now instead."""
        if self.buffers:
            torch._foreach_copy_(self.kept, self.buffers)

    @torch.no_grad()
    def take_back(self, where: Tensor | None = None) -> None:
        """Give the buffers the kept values; `where`: only if this scalar is true, decided on the device."""
        for buffer, kept in zip(self.buffers, self.kept, strict=True):
            buffer.copy_(kept if where is None else torch.where(where, kept, buffer))


@torch.no_grad()
def copy_statistics(network: nn.Module, to: nn.Module) -> None:
    """Copy the running statistics of a network into another one of its shape."""
    for new, buffer in zip(network.buffers(), to.buffers(), strict=True):
        buffer.copy_(new)
