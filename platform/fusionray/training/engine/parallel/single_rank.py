"""A network on a single rank: what every strategy of data parallelism offers to the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import nn


class SingleRank:
    """A network on a single rank; base class of the strategies."""

    # `overlaps`: gradients are exchanged during the backward pass. `needs_dry_pass`: the engine first runs passes
    # without exchange, to show that the memory is sufficient.
    overlaps = False
    needs_dry_pass = False

    def __init__(self, network: nn.Module) -> None:
        # Set while gradients are exchanged during the backward pass: it times the exchange (StepTimer.overlapped_span).
        self.overlapped_span: Callable[[str], Callable[[], None]] | None = None
        self.network = network
        self.module: nn.Module = network

    def accumulating(self) -> contextlib.AbstractContextManager[Any]:
        """Accumulate the gradients of a forward and backward pass without exchanging them."""
        return contextlib.nullcontext()

    def isolated(self) -> contextlib.AbstractContextManager[Any]:
        """Compute without any message to another rank: this one may fail alone. The gradients count for nothing."""
        return contextlib.nullcontext()

    def exchange(self) -> None:
        """Average the accumulated gradients over all ranks."""

    def reset(self) -> None:
        """Clear what a compressed exchange keeps from step to step, after non-finite gradients."""

    def gathered(self, network: nn.Module) -> nn.Module:
        """Return `network` with unsharded parameters, for use by one rank alone; all ranks must call it."""
        return network
