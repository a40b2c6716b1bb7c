"""Muon: for convolutions, a step that is equally long in all directions of their weights; AdamW for the rest.

A few directions dominate the gradient of a convolution, and Adam, which sees single weights, follows them; what the
others would teach comes late. Here the momentum of each is replaced by the orthogonal matrix next to it.

Source: Jordan et al. 2024 (Muon) for the method and its iteration; Liu et al. 2025 ("Muon is scalable for LLM
training"), section 2.2, for a step as long as AdamW's, so that both take one learning rate.

Shape suffixes: K matrices of one shape, O output channels, I what each of them sees (input channels x window).
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fusionray.training.engine.nonfinite_steps import keep_if
from fusionray.training.engine.optimizers.eager import EagerAdamW

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


@dataclass(frozen=True)
class MatrixDivision:
    """How ranks with equal gradients divide the orthogonal steps: each computes those of its matrices, and all get all.

    `waiting`: times the wait for the others.
    """

    rank: int = 0
    num_ranks: int = 1
    waiting: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


class Muon(EagerAdamW):
    """Step groups of parameters whose `orthogonal` is true as matrices, all others by AdamW.

    `momentum` is that of the matrices, and `rate` their learning rate over that of the others; `dtype` is what they
    are multiplied in: the few digits of bfloat16 suffice. With a `division`, all ranks must call `step`, with gradients
    that are equal bit for bit; every rank keeps all states.
    """

    def __init__(
        self,
        groups: Any,
        *,
        momentum: float,
        rate: float,
        dtype: torch.dtype,
        division: MatrixDivision | None = None,
        **adamw: Any,
    ) -> None:
        super().__init__(groups, **adamw)
        self.momentum = momentum
        self.rate = rate
        self.dtype = dtype
        self.division = division or MatrixDivision()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step, unless `found_inf` was set to something true, as for torch's fused optimisers.

        A GPU decides that itself: there, momenta and matrices are computed in any case, and stay what they are.
        """
        bad: Tensor | None = getattr(self, "found_inf", None)
        if bad is not None and bad.device.type == "cpu":
            if bool(bad):
                return
            bad = None
        groups = self.param_groups
        matrices = [group for group in groups if group[ORTHOGONAL]]
        finish = self.start_directions([p for group in matrices for p in group["params"] if p.grad is not None], bad)
        self.param_groups = [group for group in groups if not group[ORTHOGONAL]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        directions = finish()
        for group in matrices:
            self.step_matrices(group, directions, bad)

    def step_matrices(self, group: dict[str, Any], directions: Mapping[Tensor, Tensor], bad: Tensor | None) -> None:
        """Step the matrices of a group along their directions [O,I]; not if `bad` is 1."""
        rate = group["lr"] * self.rate
        stepped = [parameter for parameter in group["params"] if parameter in directions]
        if not stepped:
            return
        if group["weight_decay"]:
            shrunk = rate * group["weight_decay"]
            torch._foreach_mul_(stepped, 1 - shrunk if bad is None else 1 - shrunk * (1 - bad))
        if bad is not None:
            torch._foreach_mul_([directions[parameter] for parameter in stepped], 1 - bad)
        alike: dict[int, list[Tensor]] = defaultdict(list)
        for parameter in stepped:
            alike[max(directions[parameter].shape)].append(parameter)
        for longest, parameters in alike.items():
            rows = [as_rows(parameter, like=parameter) for parameter in parameters]
            length = rate * STEP_RMS * longest**0.5
            torch._foreach_sub_(rows, [directions[parameter] for parameter in parameters], alpha=length)

    def start_directions(
        self, matrices: Sequence[Tensor], bad: Tensor | None = None
    ) -> Callable[[], dict[Tensor, Tensor]]:
        """Take all gradients into the momenta, not if `bad` is 1, and orthogonalise this rank's part of the matrices.

        Returns a function that gives the directions [O,I] of all; until it is called, those of other ranks are on
        their way.
        """
        wanted = self.update_momenta(matrices, bad)
        rank, num_ranks = self.division.rank, self.division.num_ranks
        if num_ranks == 1 or not matrices:
            directions = self.find_directions(matrices, wanted)
            return lambda: directions
        parts = divide(matrices, num_ranks)
        own = self.find_directions(parts[rank], wanted)
        sizes = [sum(parameter.numel() for parameter in part) for part in parts]
        # All ranks send as much: some more than they have.
        sent = torch.zeros(max(sizes), dtype=self.dtype, device=matrices[0].device)
        if own:
            sent[: sizes[rank]] = torch.cat([own[parameter].flatten() for parameter in parts[rank]])
        received = sent.new_empty(num_ranks * len(sent))
        work = dist.all_gather_single(received, sent, async_op=True)
        assert work is not None

        def finish() -> dict[Tensor, Tensor]:
            with self.division.waiting():
                work.wait()
            found: dict[Tensor, Tensor] = {}
            for part, values in zip(parts, received.view(num_ranks, -1).to(matrices[0].dtype), strict=True):
                lengths = [parameter.numel() for parameter in part]
                for parameter, direction in zip(part, values[: sum(lengths)].split(lengths), strict=True):
                    found[parameter] = direction.view(parameter.shape[0], -1)
            return found

        return finish

    def find_directions(self, matrices: Iterable[Tensor], wanted: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Orthogonalise what is `wanted` for matrices, those of one shape together: [O,I], of their dtype."""
        alike: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in matrices:
            alike[wanted[parameter].shape].append(parameter)
        directions: dict[Tensor, Tensor] = {}
        for parameters in alike.values():
            wanted_KOI = torch.stack([wanted[parameter] for parameter in parameters])
            # Of one dtype with the matrices: else torch steps them one by one.
            near_KOI = orthogonalize(wanted_KOI, self.dtype).to(parameters[0].dtype)
            directions.update(zip(parameters, near_KOI, strict=True))
        return directions

    def update_momenta(self, matrices: Sequence[Tensor], bad: Tensor | None) -> dict[Tensor, Tensor]:
        """Take gradients into the momenta, not if `bad` is 1; return Nesterov's look ahead of them, [O,I]."""
        if not matrices:
            return {}
        for parameter in matrices:
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        momenta = [as_rows(self.state[parameter]["momentum"], like=parameter) for parameter in matrices]
        gradients = [as_rows(parameter.grad, like=parameter) for parameter in matrices]  # type: ignore[arg-type]
        if bad is not None:
            gradients = keep_if(bad, momenta, gradients)
        torch._foreach_lerp_(momenta, gradients, 1 - self.momentum)
        return dict(zip(matrices, torch._foreach_lerp(gradients, momenta, self.momentum), strict=True))


def divide(matrices: Iterable[Tensor], num_parts: int) -> list[list[Tensor]]:
    """Divide matrices into parts that cost about the same: the most expensive first, each to the cheapest part.

    The same on every rank, since it depends on the order and the shapes alone.
    """
    costs = [0] * num_parts
    parts: list[list[Tensor]] = [[] for _ in range(num_parts)]
    for parameter in sorted(matrices, key=cost, reverse=True):
        cheapest = costs.index(min(costs))
        parts[cheapest].append(parameter)
        costs[cheapest] += cost(parameter)
    return parts


def cost(parameter: Tensor) -> int:
    """Return the multiplications of a round for a matrix: its Gram matrix, the square of that, and a product."""
    narrow, wide = sorted((parameter.shape[0], parameter[0].numel()))
    return narrow * narrow * (2 * wide + narrow)


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
