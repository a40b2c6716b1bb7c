"""The report of one step; values are copied from the device only when they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor


class StepReport:
    """Mean loss parts over micro-batches and ranks, gradient norms before clipping, rates, skipped phases.

    Reading waits for the device: read the newest report on logging steps only.
    """

    def __init__(
        self, losses: Mapping[str, Tensor], grad_norms: Mapping[str, Tensor], learning_rates: Mapping[str, float]
    ) -> None:
        self.loss_tensors = losses
        self.norm_tensors = grad_norms
        self.learning_rates = dict(learning_rates)

    @cached_property
    def losses(self) -> dict[str, float]:
        """Loss parts by name."""
        return read(self.loss_tensors)

    @cached_property
    def grad_norms(self) -> dict[str, float]:
        """Gradient norms by phase."""
        return read(self.norm_tensors)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Phases whose gradient was not finite, so that their networks were not updated."""
        return tuple(name for name, norm in self.grad_norms.items() if not math.isfinite(norm))


def read(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Copy scalars to the host, in one transfer."""
    if not values:
        return {}
    return dict(zip(values, torch.stack([value.float() for value in values.values()]).tolist(), strict=True))
