"""What the ranks of a process group agree on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


def start_communicator(device: torch.device) -> None:
    """Let NCCL take its part of a GPU's memory now: it does so in the first exchange."""
    if device.type == "cuda" and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(torch.zeros(1, device=device))


def smallest(value: int, group: dist.ProcessGroup | None) -> int:
    """Return the smallest value of all ranks, which must make the same choices by it."""
    agreed = torch.tensor(value)
    if group is not None:
        dist.all_reduce(agreed, dist.ReduceOp.MIN, group=group)
    return int(agreed)


def find_host_group() -> dist.ProcessGroup | None:
    """Return the process group for decisions of the host; None for a single rank.

    With NCCL it is a separate gloo group: such decisions must not wait for queued work of the device.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")


def mean_over_ranks(losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Average loss parts, scalars of the same names on all ranks, at least one; the results stay on the device."""
    values = torch.stack(list(losses.values()))
    dist.all_reduce(values)
    return dict(zip(losses, (values / dist.get_world_size()).unbind(), strict=True))
