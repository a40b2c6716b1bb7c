"""The running statistics of networks, such as those of batch norms: snapshot, restore, copy.

They change in the forward pass, so skipping the optimiser's step does not undo them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class RunningStatistics:
    """The buffers of some networks, and a snapshot from which they can be restored."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        """Take the first snapshot."""
        self.buffers = [buffer for network in networks for buffer in network.buffers()]
        self.saved = [buffer.clone() for buffer in self.buffers]

    @torch.no_grad()
    def snapshot(self) -> None:
        """Replace the snapshot by the present values."""
        if self.buffers:
            torch._foreach_copy_(self.saved, self.buffers)

    @torch.no_grad()
    def restore(self, where: Tensor | None = None) -> None:
        """Restore the snapshot; `where`: only if this bool scalar is true, decided on the device."""
        for buffer, saved in zip(self.buffers, self.saved, strict=True):
            buffer.copy_(saved if where is None else torch.where(where, saved, buffer))


@torch.no_grad()
def copy_statistics(network: nn.Module, to: nn.Module) -> None:
    """Copy the running statistics of a network into another one of the same shape."""
    for new, buffer in zip(network.buffers(), to.buffers(), strict=True):
        buffer.copy_(new)
