"""Muon: for convolutions, a step that is equally long in all directions of their weights; AdamW for the rest.

A few directions dominate the gradient of a convolution, and Adam, which sees single weights, follows them; what the
others would teach comes late. Here the momentum of each is replaced by the orthogonal matrix next to it.

Source: Jordan et al. 2024 (Muon) for the method and its iteration; Liu et al. 2025 ("Muon is scalable for LLM
training"), section 2.2, for a step as long as AdamW's, so that both take one learning rate.

Shape suffixes: K matrices of one shape, O output channels, I what each of them sees (input channels x window).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fusionray.training.engine.eager_optimizers import EagerAdamW

# Of an odd quintic that brings singular values of [0,1] near 1, the smaller the more rounds it takes (Jordan et al.).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# They take five; the closer bound of `orthogonalize` is worth one.
ROUNDS = 4
# The root mean square of AdamW's usual step, in learning rates.
STEP_RMS = 0.2
# Below this a matrix has no directions to speak of.
LEAST_SIDE = 8
# The key of a group of parameters that says how it is stepped.
ORTHOGONAL = "orthogonal"


def is_matrix(parameter: Tensor) -> bool:
    """Tell whether a parameter is stepped as a matrix: a convolution, one row a filter.

    Dense layers here are projections of styles: stepped so they learned no faster (docs/experiments.md).
    """
    return parameter.ndim > 2 and min(parameter.shape[0], parameter[0].numel()) >= LEAST_SIDE


class Muon(EagerAdamW):
    """Step groups of parameters whose `orthogonal` is true as matrices, all others by AdamW.

    `momentum` is that of the matrices, and `rate` their learning rate over that of the others; `dtype` is what they
    are multiplied in: the few digits of bfloat16 suffice.
    """

    def __init__(self, groups: Any, *, momentum: float, rate: float, dtype: torch.dtype, **adamw: Any) -> None:
        super().__init__(groups, **adamw)
        self.momentum = momentum
        self.rate = rate
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step, unless `found_inf` was set to something true, as for torch's fused optimisers."""
        found: Tensor | None = getattr(self, "found_inf", None)
        if found is not None and bool(found):
            return
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group[ORTHOGONAL]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group[ORTHOGONAL]:
                self.step_matrices(group)

    def step_matrices(self, group: dict[str, Any]) -> None:
        """Step the matrices of a group, those of one shape together."""
        alike: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                alike[parameter.shape[0], parameter[0].numel()].append(parameter)
        for shape, parameters in alike.items():
            wanted_KOI = torch.stack([self.look_ahead(parameter) for parameter in parameters])
            rate = group["lr"] * self.rate
            length = rate * STEP_RMS * max(shape) ** 0.5
            for parameter, step_OI in zip(parameters, orthogonalize(wanted_KOI, self.dtype), strict=True):
                if group["weight_decay"]:
                    parameter.mul_(1 - rate * group["weight_decay"])
                as_rows(parameter, like=parameter).sub_(step_OI, alpha=length)

    def look_ahead(self, parameter: Tensor) -> Tensor:
        """Take the gradient into the parameter's momentum, and give Nesterov's look ahead of it, [O,I]."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        gradient, momentum = (as_rows(tensor, like=parameter) for tensor in (parameter.grad, state["momentum"]))
        return gradient.lerp(momentum.lerp_(gradient, 1 - self.momentum), self.momentum)


def as_rows(filters: Tensor, like: Tensor) -> Tensor:
    """See convolutions as one row a filter, in the order in which `like` lies in memory: a copy would cost a pass."""
    if like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last):
        filters = filters.permute(0, 2, 3, 1)
    return filters.reshape(filters.shape[0], -1)


def orthogonalize(matrices_KOI: Tensor, dtype: torch.dtype) -> Tensor:
    """Give the (semi-)orthogonal matrices next to given ones, of `dtype`, singular values near 1 (0.6 .. 1.3).

    All-zero matrices stay as they are.
    """
    linear, cubic, quintic = COEFFICIENTS
    is_tall = matrices_KOI.shape[1] > matrices_KOI.shape[2]
    wide = matrices_KOI.mT if is_tall else matrices_KOI
    # Any scale at which half precision neither overflows nor drowns.
    x = torch.empty(wide.shape, dtype=dtype, device=wide.device)
    torch.mul(wide, 1 / wide.norm(dim=(1, 2), keepdim=True).clamp_min(1e-12), out=x)
    gram = torch.bmm(x, x.mT)
    # The iteration wants no singular value above 1. The fourth root of the sum of their fourth powers, which is the
    # norm of the Gram matrix, exceeds none of them by as much as the root of the sum of squares does.
    power = gram.float().norm(dim=(1, 2), keepdim=True).clamp_min(1e-12)
    x, gram = x * power.rsqrt().to(dtype), gram / power.to(dtype)
    for left in reversed(range(ROUNDS)):
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
        if left:
            gram = torch.bmm(x, x.mT)
    near: Tensor = x.mT if is_tall else x
    return near
