"""PReLU with a backward pass that is fast on CPUs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PReLU(nn.PReLU):
    """`nn.PReLU` with the same values, gradients and state dict.

    On channels-last tensors, torch's own backward pass is not vectorised: 5.6 ms for [32,32,28,28] in bfloat16 against
    1.1 ms here. The difference is a seventh of an identity encoder's step.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().forward(x)
        out: Tensor = _PReLUFunction.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return out


class _PReLUFunction(torch.autograd.Function):
    """max(x, 0) + w min(x, 0), with one w per channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_C: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight_C)
        with torch.autocast("cpu", enabled=False):
            return F.prelu(x, weight_C.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight_C = ctx.saved_tensors
        (gradient,) = gradients
        above: Tensor = torch.ops.aten.threshold_backward(gradient, x, 0)
        below = gradient - above
        slope = weight_C.to(x.dtype).view(-1, *(1,) * (x.ndim - 2))
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            others = [dim for dim in range(x.ndim) if dim != 1]
            weight_gradient = (below * x).sum(others).to(weight_C.dtype).view_as(weight_C)
        return above + below * slope, weight_gradient
