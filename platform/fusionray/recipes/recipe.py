"""Contract 2: what a recipe offers to the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    """How one network is optimised; its learning rate is base_lr x global batch / 32 x schedule."""

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
        """Make up for a lazy second phase of the same network, which steps once more every `interval` steps.

        lr' = c lr, beta' = beta^c with c = k / (k + 1): k + 1 steps then move and forget as much as k did.

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
    """What a phase's loss sees.

    `networks`: the trained network in its distributed wrapper, the others bare. `frozen`: never trained.
    `batch`: the prepared batch. `shared`: tensors that an earlier phase of the same step left for later ones.
    """

    networks: Mapping[str, nn.Module]
    frozen: Mapping[str, nn.Module]
    batch: BatchT
    shared: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Losses:
    """`total` is what is differentiated (scalar); `parts` are logged (scalars, detached by the engine)."""

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Phase(Generic[BatchT]):
    """One optimisation of one network; it runs on every `interval`-th step.

    `second_order`: the loss differentiates a gradient; compiled graphs and sharded parameters cannot follow that.
    """

    name: str
    trains: str
    loss: Callable[[PhaseInput[BatchT]], Losses]
    interval: int = 1
    second_order: bool = False


class Recipe(Protocol[BatchT]):
    """Networks, phases and what to do with a batch; knows no Ray, no files, no devices."""

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """Networks to train, by name."""

    @property
    def frozen(self) -> Mapping[str, nn.Module]:
        """Networks that only look."""

    @property
    def adaptive(self) -> Mapping[str, nn.Module]:
        """Modules without parameters whose buffers follow the training; kept in checkpoints."""

    @property
    def optimizers(self) -> Mapping[str, OptimizerConfig]:
        """How each network is optimised."""

    @property
    def ema_names(self) -> frozenset[str]:
        """Names of the networks of which a moving average is kept."""

    @property
    def phases(self) -> tuple[Phase[BatchT], ...]:
        """What one step does, in order."""

    def prepare(self, batch: BatchT) -> Any:
        """Turn uint8 crops on the device into what the phases see: augmentation, scaling, rendered truth."""

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Let the adaptive modules follow a step over `num_images` images.

        `losses`: the step's loss parts, averaged over all micro-batches and ranks, scalars on the device; all ranks
        compute the same from them. Must not wait for the device (no `.item()`).
        """

    def preview(self, networks: Mapping[str, nn.Module], batch: BatchT) -> Tensor | None:
        """Draw what the networks do as [R,C,3,S,S] uint8 (rows, columns), or None if there is nothing to see."""

    def evaluate(self, networks: Mapping[str, nn.Module], batches: Iterable[BatchT]) -> dict[str, float]:
        """Measure the networks on held-out batches."""


def tile(grid: Tensor) -> NDArray[np.uint8]:
    """Lay out pictures [R,C,3,S,S] uint8 as one picture [R*S, C*S, 3]."""
    rows, columns, channels, size, _ = grid.shape
    picture: NDArray[np.uint8] = (
        grid.permute(0, 3, 1, 4, 2).reshape(rows * size, columns * size, channels).cpu().numpy()
    )
    return picture
