"""The interface between a recipe and the engine: networks, phases, losses, optimiser settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section, in_unit
from fusionray.types import Batch

BatchT = TypeVar("BatchT", bound=Batch)


class OptimizerConfig(Section):
    """The optimiser of one network; its learning rate is base_lr x global batch / 32 x schedule."""

    kind: Literal["adamw", "muon", "sgd"] = Field(
        "adamw", description="Algorithm; muon takes orthogonal steps for convolutions and adamw steps for the rest."
    )
    base_lr: float = Field(1e-4, gt=0, description="Learning rate at a global batch of 32.")
    betas: tuple[float, float] = Field(
        (0.0, 0.99), description="Decay rates of Adam's moment estimates.", json_schema_extra=in_unit("")
    )
    muon_rate: float = Field(
        1.0,
        gt=0,
        description="Learning rate of muon's convolutions, relative to that of the other parameters.",
        json_schema_extra=in_unit("factor"),
    )
    momentum: float = Field(
        0.9, ge=0, lt=1, description="Momentum of sgd, and of muon's convolutions.", json_schema_extra=in_unit("")
    )
    weight_decay: float = Field(
        0.0, ge=0, description="Weight decay: decoupled for adamw and muon, L2 for sgd.", json_schema_extra=in_unit("")
    )

    def adjust_for_lazy_penalty(self, interval: int) -> OptimizerConfig:
        """Compensate for a lazy second phase of the same network, which takes an extra step every `interval` steps.

        lr' = c lr, beta' = beta^c with c = k / (k + 1): k + 1 steps then have the total rate and decay of k steps.

        Source: StyleGAN2 (Karras et al. 2020), appendix B, "Lazy regularization".
        """
        share = interval / (interval + 1)
        return self.model_copy(
            update={
                "base_lr": self.base_lr * share,
                "betas": (self.betas[0] ** share, self.betas[1] ** share),
                "momentum": self.momentum**share,
            }
        )


@dataclass(frozen=True)
class PhaseInput(Generic[BatchT]):
    """The arguments of a phase's loss.

    `networks`: the trained network in its distributed wrapper, the others unwrapped. `frozen`: networks that are never
    trained. `batch`: the prepared batch. `shared`: tensors that earlier phases of the same step pass to later ones.
    """

    networks: Mapping[str, nn.Module]
    frozen: Mapping[str, nn.Module]
    batch: BatchT
    shared: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Losses:
    """`total`: the scalar whose gradient trains; `parts`: scalars to log, which the engine detaches."""

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Phase(Generic[BatchT]):
    """One optimiser step of the network `trains`, on every `interval`-th step.

    `second_order`: the loss differentiates a gradient, which compiled graphs and sharded parameters do not support.
    """

    name: str
    trains: str
    loss: Callable[[PhaseInput[BatchT]], Losses]
    interval: int = 1
    second_order: bool = False


class Recipe(Protocol[BatchT]):
    """The networks and phases of one model, in pure torch without Ray, files or devices."""

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """Return the networks to train, by name."""

    @property
    def frozen(self) -> Mapping[str, nn.Module]:
        """Return the modules that are used but not trained; checkpoints hold those with parameters."""

    @property
    def adaptive(self) -> Mapping[str, nn.Module]:
        """Return the modules without parameters whose buffers `adapt` updates; checkpoints hold them."""

    @property
    def optimizers(self) -> Mapping[str, OptimizerConfig]:
        """Return the optimiser settings of each network."""

    @property
    def ema_names(self) -> frozenset[str]:
        """Return the names of the networks that have an EMA."""

    @property
    def phases(self) -> tuple[Phase[BatchT], ...]:
        """Return the phases of one step, in order."""

    def prepare(self, batch: BatchT) -> Any:
        """Turn uint8 crops on the device into the batch of the phases: augmented, scaled, with the rendered truth."""

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Update the adaptive modules after a step over `num_images` images.

        `losses`: the step's loss parts, averaged over all micro-batches and ranks: equal scalars on the device of every
        rank. The method must not synchronise with the device (no `.item()`).
        """

    def preview(self, networks: Mapping[str, nn.Module], batch: BatchT) -> Tensor | None:
        """Return example pictures uint8 [R,C,3,S,S] (rows, columns), or None if the model makes no pictures."""

    def measure(self, networks: Mapping[str, nn.Module], batch: BatchT) -> dict[str, Tensor]:
        """Measure a held-out batch: columns by name, each with one entry for each row of the batch."""

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return metrics by name from the columns of all held-out batches, on the CPU; ranks share the batches."""


def tile(grid: Tensor) -> NDArray[np.uint8]:
    """Lay out pictures uint8 [R,C,3,S,S] as one picture [R*S, C*S, 3]."""
    rows, columns, channels, size, _ = grid.shape
    picture: NDArray[np.uint8] = (
        grid.permute(0, 3, 1, 4, 2).reshape(rows * size, columns * size, channels).cpu().numpy()
    )
    return picture
