"""Picture-encoder recipe: train a perceptual network on pictures without labels, by telling pictures apart.

Two crops of one picture must have nearer embeddings than crops of different pictures. Two crops show different things
in one palette and one texture, so the features learn what style is made of; colours are jittered, since a palette alone
would tell most pictures apart.

Source: SimCLR (Chen et al. 2020), section 2.1 and equation 1.

Shape suffixes: N batch, C channels, H rows, W columns, E embedding length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import in_unit
from fusionray.nets.picture_encoder import PictureEncoder, PictureEncoderConfig
from fusionray.nets.pixels import to_float
from fusionray.recipes.augmentation import Augmentation, AugmentationConfig
from fusionray.recipes.family import RecipeConfig
from fusionray.recipes.recipe import Losses, OptimizerConfig, Phase, PhaseInput
from fusionray.types import Batch


class PictureEncoderRecipeConfig(RecipeConfig):
    """Picture-encoder recipe: a perceptual network that learns without labels."""

    name: Literal["picture_encoder"] = Field("picture_encoder", description="Selects the picture-encoder recipe.")
    encoder: PictureEncoderConfig = PictureEncoderConfig()
    view: int = Field(64, ge=16, description="Side of the two crops of each picture.", json_schema_extra=in_unit("px"))
    temperature: float = Field(
        0.1, gt=0, description="Temperature of the contrastive loss.", json_schema_extra=in_unit("")
    )
    augmentation: AugmentationConfig = AugmentationConfig(contrast=0.2, saturation=0.3)
    optimizer: OptimizerConfig = OptimizerConfig(kind="adamw", base_lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)


@dataclass(frozen=True)
class Pictures(Batch):
    """Pictures [N,3,S,S], uint8."""

    picture: Tensor


@dataclass(frozen=True)
class Views(Batch):
    """Two views of each picture [N,3,V,V] in [-1,1]."""

    first: Tensor
    second: Tensor


class PictureEncoderRecipe:
    """Train an encoder to find the other view of each picture among the views of a batch."""

    ema_names = frozenset({"encoder"})

    def __init__(self, config: PictureEncoderRecipeConfig) -> None:
        self.config = config
        self.networks: Mapping[str, nn.Module] = {"encoder": PictureEncoder(config.encoder)}
        self.augmentation = Augmentation(config.augmentation)
        self.frozen: Mapping[str, nn.Module] = {"augmentation": self.augmentation}
        self.adaptive: Mapping[str, nn.Module] = {}
        self.optimizers = {"encoder": config.optimizer}
        self.phases = (Phase("tell_apart", "encoder", self.tell_apart),)

    def prepare(self, batch: Pictures) -> Views:
        """Cut two views at random places of each picture, and augment them apart."""
        pictures = to_float(batch.picture)
        first, second = (self.augmentation(cut_views(pictures, self.config.view))[0] for _ in range(2))
        return Views(first, second)

    def tell_apart(self, step: PhaseInput[Views]) -> Losses:
        """Cross-entropy of the cosine similarities between first and second views, in both directions."""
        count = len(step.batch)
        # One forward pass for both: the distributed wrapper expects one for each backward pass.
        embedded = step.networks["encoder"](torch.cat([step.batch.first, step.batch.second]))
        loss, correct = contrast_views(embedded[:count], embedded[count:], self.config.temperature)
        return Losses(loss, {"contrast": loss, "contrast_accuracy": correct.mean()})

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Do nothing: there are no adaptive modules."""

    def preview(self, networks: Mapping[str, nn.Module], batch: Pictures) -> Tensor | None:
        """Return None: the network makes no pictures."""
        del networks, batch
        return None

    @torch.no_grad()
    def measure(self, networks: Mapping[str, nn.Module], batch: Pictures) -> dict[str, Tensor]:
        """Tell whether the lower right corner of each held-out picture is nearest to its upper left one, [N]."""
        pictures, side = to_float(batch.picture), min(self.config.view, batch.picture.shape[-1])
        corners = [pictures[..., :side, :side], pictures[..., -side:, -side:]]
        first, second = (networks["encoder"](corner) for corner in corners)
        _, correct = contrast_views(first, second, self.config.temperature)
        return {"contrast_accuracy": correct}

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the share of pictures whose views find each other."""
        return {f"validation_{name}": float(column.mean()) for name, column in columns.items()}


def cut_views(pictures_N3SS: Tensor, side: int) -> Tensor:
    """Cut a square of `side` px at a random place of each picture: [N,3,V,V]; V is at most S."""
    count, _, size, _ = pictures_N3SS.shape
    side = min(side, size)
    device = pictures_N3SS.device
    corner_N2 = (torch.rand(count, 2, device=device) * (size - side + 1)).long()
    steps_V = torch.arange(side, device=device)
    rows_NV, columns_NV = corner_N2[:, :1] + steps_V, corner_N2[:, 1:] + steps_V
    number_N = torch.arange(count, device=device)
    channel_3 = torch.arange(3, device=device)
    return pictures_N3SS[
        number_N[:, None, None, None],
        channel_3[None, :, None, None],
        rows_NV[:, None, :, None],
        columns_NV[:, None, None, :],
    ]


def contrast_views(first_NE: Tensor, second_NE: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the contrastive loss of two sets of embeddings, scalar, and whether each view finds its other one, [N]."""
    logits_NN = first_NE.float() @ second_NE.float().T / temperature
    wanted_N = torch.arange(len(logits_NN), device=logits_NN.device)
    loss = (F.cross_entropy(logits_NN, wanted_N) + F.cross_entropy(logits_NN.T, wanted_N)) / 2
    return loss, (logits_NN.detach().argmax(dim=1) == wanted_N).float()
