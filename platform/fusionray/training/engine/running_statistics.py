"""The running statistics of networks, such as those of batch norms: snapshot, restore, copy.

They change in the forward pass, so skipping the optimiser's step does not undo them. Every buffer counts; copying
constants is harmless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fusionray.training.engine.nonfinite_steps import keep_if


class RunningStatistics:
    """The buffers of some networks, in lists of one dtype, and a snapshot from which they can be restored."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        """Take the first snapshot."""
        self.buffers = list(group_by_dtype(networks).values())
        self.saved = [[buffer.clone() for buffer in alike] for alike in self.buffers]

    @torch.no_grad()
    def snapshot(self) -> None:
        """Replace the snapshot by the current values."""
        for saved, buffers in zip(self.saved, self.buffers, strict=True):
            torch._foreach_copy_(saved, buffers)

    @torch.no_grad()
    def restore(self, condition: Tensor | None = None) -> None:
        """Restore the snapshot.

        `condition`: bool scalar tensor on the device; the snapshot is restored only if it is true, without a host sync.
        """
        for saved, buffers in zip(self.saved, self.buffers, strict=True):
            torch._foreach_copy_(buffers, saved if condition is None else keep_if(condition, saved, buffers))


@torch.no_grad()
def copy_statistics(network: nn.Module, to: nn.Module) -> None:
    """Copy the running statistics of `network` into the network `to`, which has buffers of the same shapes."""
    for source, target in zip(group_by_dtype([network]).values(), group_by_dtype([to]).values(), strict=True):
        torch._foreach_copy_(target, source)


def group_by_dtype(networks: Iterable[nn.Module]) -> dict[torch.dtype, list[Tensor]]:
    """Return the buffers of networks: those of one dtype take one kernel."""
    alike: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for network in networks:
        for buffer in network.buffers():
            alike[buffer.dtype].append(buffer)
    return alike
