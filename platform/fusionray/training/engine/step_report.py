"""The report of one step: its values are sent to the host at once, and only who reads them waits for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from fusionray.training.timing.clocks import HostClock, StreamClock


class StepReport:
    """Mean loss parts over micro-batches and ranks, gradient norms before clipping, rates, skipped phases.

    Reading waits until the device has computed this step, not for what was queued after it: on a GPU the values are
    copied to page-locked memory in their turn, and an event of `clock` tells when they are there.
    """

    def __init__(
        self,
        losses: Mapping[str, Tensor],
        grad_norms: Mapping[str, Tensor],
        learning_rates: Mapping[str, float],
        clock: HostClock | StreamClock | None = None,
    ) -> None:
        """Send the scalars of a step to the host. `clock`: that of the device; None on a CPU."""
        self.learning_rates = dict(learning_rates)
        self.loss_names, self.norm_names = tuple(losses), tuple(grad_norms)
        scalars = [value.detach().float() for value in (*losses.values(), *grad_norms.values())]
        self.sent = torch.stack(scalars).to("cpu", non_blocking=True) if scalars else torch.empty(0)
        self.clock = clock or HostClock()
        self.moment = self.clock.now()

    @cached_property
    def values(self) -> list[float]:
        """All losses, then all norms."""
        self.clock.is_past(self.moment, wait=True)  # type: ignore[arg-type]
        self.clock.release([self.moment])  # type: ignore[list-item]
        return self.sent.tolist()

    @cached_property
    def losses(self) -> dict[str, float]:
        """Loss parts by name."""
        return dict(zip(self.loss_names, self.values[: len(self.loss_names)], strict=True))

    @cached_property
    def grad_norms(self) -> dict[str, float]:
        """Gradient norms by phase."""
        return dict(zip(self.norm_names, self.values[len(self.loss_names) :], strict=True))

    @property
    def skipped(self) -> tuple[str, ...]:
        """Phases whose gradient was not finite, so that their networks were not updated."""
        return tuple(name for name, norm in self.grad_norms.items() if not math.isfinite(norm))
