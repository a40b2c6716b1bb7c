"""The running statistics of networks, such as those of batch norms: snapshot, restore, copy.

They change in the forward pass, so skipping the optimiser's step does not undo them. Every buffer counts; copying
constants is harmless.
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
        """Replace the snapshot by the current values."""
        if self.buffers:
            torch._foreach_copy_(self.saved, self.buffers)

    @torch.no_grad()
    def restore(self, condition: Tensor | None = None) -> None:
        """Restore the snapshot.

        `condition`: bool scalar tensor on the device; the snapshot is restored only if it is true, without a host sync.
        """
        for source, target in zip(self.saved, self.buffers, strict=True):
            target.copy_(source if condition is None else torch.where(condition, source, target))


@torch.no_grad()
def copy_statistics(network: nn.Module, to: nn.Module) -> None:
    """Copy the running statistics of `network` into the network `to`, which has buffers of the same shapes."""
    for source, target in zip(network.buffers(), to.buffers(), strict=True):
        target.copy_(source)
