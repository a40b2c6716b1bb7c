"""A recipe without randomness, small enough to check an engine's arithmetic by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fusionray.recipes.recipe import Losses, OptimizerConfig, Phase, PhaseInput
from fusionray.types import Batch


@dataclass(frozen=True)
class Numbers(Batch):
    """`x` [N,3], what each network is to make of it: `first` [N,1] and `second` [N,1]."""

    x: Tensor
    first: Tensor
    second: Tensor


def draw_numbers(count: int, seed: int = 0) -> Numbers:
    generator = torch.Generator().manual_seed(seed)
    x, first, second = (torch.randn(count, width, generator=generator) for width in (3, 1, 1))
    return Numbers(x, first, second)


def split(batch: Numbers, parts: int) -> list[Numbers]:
    size = len(batch) // parts
    return [batch.map(lambda value, start=start: value[start : start + size]) for start in range(0, len(batch), size)]  # type: ignore[misc]


class ToyRecipe:
    """Two networks, each fitted to its own numbers; the second one every other step."""

    ema_names = frozenset({"first"})

    def __init__(self, kind: str = "sgd", seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.networks: Mapping[str, nn.Module] = {name: build_network() for name in ("first", "second")}
        self.frozen: Mapping[str, nn.Module] = {"watcher": nn.Linear(3, 3)}
        self.adaptive: Mapping[str, nn.Module] = {}
        settings = OptimizerConfig.model_validate({"kind": kind, "base_lr": 0.1, "betas": (0.9, 0.99)})
        self.optimizers = dict.fromkeys(self.networks, settings)
        self.phases = (Phase("fit_first", "first", fit_first), Phase("fit_second", "second", fit_second, interval=2))

    def prepare(self, batch: Numbers) -> Numbers:
        return batch.map(torch.clone)

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        pass

    def preview(self, networks: Mapping[str, nn.Module], batch: Numbers) -> Tensor | None:
        return None

    def measure(self, networks: Mapping[str, nn.Module], batch: Numbers) -> dict[str, Tensor]:
        return {}

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        return {}


def build_network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def fit_first(step: PhaseInput[Numbers]) -> Losses:
    loss = (step.networks["first"](step.batch.x) - step.batch.first).square().mean()
    # Through the other network, as an adversarial loss goes through the discriminator.
    seen = step.networks["second"](step.batch.x + step.networks["first"](step.batch.x)).mean() * 0.1
    step.shared["fitted"] = loss.detach()
    return Losses(loss + seen, {"first": loss})


def fit_second(step: PhaseInput[Numbers]) -> Losses:
    loss = (step.networks["second"](step.batch.x) - step.batch.second).square().mean()
    return Losses(loss, {"second": loss, "fitted": step.shared["fitted"]})


class CompilableNetwork(nn.Sequential):
    """The same layers with a forward pass of their own: torch compiles no forward pass that is part of torch."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


class CompilableRecipe(ToyRecipe):
    """The toy recipe with networks of three layers that `engine.compile` compiles."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.networks = {
            name: CompilableNetwork(
                nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
            )
            for name in self.networks
        }


# What an engine of the recipe below is built with.
HUNGRY: dict[str, Any] = {"total_images": 1600, "device": torch.device("cpu")}


class HungryRecipe(ToyRecipe):
    """Fits one network, at the price of MIBS_A_ROW of memory for each row of a batch until its backward pass."""

    MIBS_A_ROW = 8

    def __init__(self) -> None:
        super().__init__()
        self.phases = (Phase("fit_first", "first", self.fit_hungrily),)

    def fit_hungrily(self, step: PhaseInput[Numbers]) -> Losses:
        made = step.networks["first"](step.batch.x)
        wide = made.expand(len(made), self.MIBS_A_ROW * 2**18)
        # The square keeps its input for the backward pass: four bytes a number.
        loss = ((wide + 0.0).square().mean(dim=1, keepdim=True) - step.batch.first).square().mean()
        return Losses(loss, {"first": loss})
