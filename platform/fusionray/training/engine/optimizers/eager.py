"""torch's optimisers without torch._dynamo: they are never compiled, so its import would be a second of every start.

torch wraps some methods of its optimisers, only to exclude them from compilation, and the wrappers import torch._dynamo
at their first call.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch


class EagerOptimizer(torch.optim.Optimizer):
    """Mixin for an optimiser that no compiled function calls."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as torch does."""
        unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step, as torch does."""
        unwrap(super().step)(self, closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, as torch does."""
        unwrap(torch.optim.Optimizer.zero_grad)(self, set_to_none)


class EagerAdamW(EagerOptimizer, torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019)."""


class EagerSGD(EagerOptimizer, torch.optim.SGD):
    """Stochastic gradient descent, with momentum if it is set."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step, as torch does.

        Momenta begin as zeros. Torch's fused kernel writes the first ones itself, and if that step is skipped, they
        stay whatever was in their memory.
        """
        for group in self.param_groups:
            for parameter in group["params"] if group["momentum"] else ():
                if parameter.grad is not None and "momentum_buffer" not in self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        super().step(closure)
