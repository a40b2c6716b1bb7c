"""Averages of gradients over all ranks, sent as float32, bfloat16 or float16."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# The largest power of two below that of float16: sums of scaled gradients stay under it on every rank.
FP16_EXPONENT = 15


def average(values: Tensor, wire: torch.dtype) -> None:
    """Average a float32 tensor over all ranks in place, sent as `wire`."""
    sent, exponent = prepare_to_send(values, wire)
    dist.all_reduce(sent)
    restore(values, sent, exponent)


def average_bucket(wire: torch.dtype, bucket: Any) -> torch.futures.Future[Tensor]:
    """Average a bucket of DistributedDataParallel over all ranks; torch's own bf16 hook refuses gloo."""
    buffer: Tensor = bucket.buffer()
    sent, exponent = prepare_to_send(buffer, wire)
    work = dist.all_reduce(sent, async_op=True)
    assert work is not None

    def finish(future: torch.futures.Future[Any]) -> Tensor:
        del future
        restore(buffer, sent, exponent)
        return buffer

    future: torch.futures.Future[Any] = work.get_future()
    return future.then(finish)


def prepare_to_send(values: Tensor, wire: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Divide by the number of ranks in place and cast; return what to sum, and the exponent by which it is scaled.

    bfloat16 has the range of float32. In float16, gradients of 1e-6 would lose most of their digits, and large ones
    would overflow: there, all ranks scale by one power of two (int32 [], on the device), so that the largest share of
    all ranks is close to the largest number. They agree on it in a message of its own, which keeps no state that a
    resumed run would lack; bfloat16 needs none.
    """
    num_ranks = dist.get_world_size()
    values.div_(num_ranks)
    if wire is not torch.float16:
        return values.to(wire), None
    largest = values.abs().max() * num_ranks
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    # Not further than float32 itself can be scaled; of values that are not finite nothing is finite afterwards.
    exponent = (FP16_EXPONENT - torch.frexp(largest).exponent).clamp(-100, 100)
    return torch.ldexp(values, exponent).to(wire), exponent


def restore(values: Tensor, sent: Tensor, exponent: Tensor | None) -> None:
    """Write the sum of what was sent into `values`."""
    if sent is not values:
        values.copy_(sent)
    if exponent is not None:
        values.ldexp_(-exponent)
