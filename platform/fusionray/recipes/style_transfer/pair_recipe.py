"""What recipes on pairs of style and content have in common: augmentation, a frozen perceptual network, scores.

Shape suffixes: N batch, S side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fusionray.nets.pixels import to_float
from fusionray.recipes.augmentation import Augmentation, AugmentationConfig
from fusionray.recipes.style_transfer.perceptual import features_of
from fusionray.recipes.style_transfer.scoring import StyleScorer
from fusionray.types import Batch

SCORED_ROWS = 16


@dataclass(frozen=True)
class StylePairs(Batch):
    """Styles and contents [N,3,S,S]: uint8 as they are read, float in [-1,1] as they are learned from."""

    style: Tensor
    content: Tensor


class PairRecipe(ABC):
    """Base of these recipes."""

    content_layers: Sequence[int]

    def __init__(self, augmentation: AugmentationConfig, perceptual: nn.Module) -> None:
        self.channels = [maps.shape[1] for maps in features_of(perceptual, torch.zeros(1, 3, 32, 32))]
        self.augmentation = Augmentation(augmentation)
        self.frozen: Mapping[str, nn.Module] = {"perceptual": perceptual, "augmentation": self.augmentation}
        self.adaptive: Mapping[str, nn.Module] = {}

    @property
    def num_maps(self) -> int:
        """Return the number of feature maps of the perceptual network."""
        return len(self.channels)

    @abstractmethod
    def build_model(self, networks: Mapping[str, nn.Module]) -> nn.Module:
        """Return the model among the networks of the recipe: styles and contents [N,3,S,S] in [-1,1] to pictures."""
        ...

    def prepare(self, batch: StylePairs) -> StylePairs:
        """Augment styles and contents apart: more palettes than there are pictures."""
        (style,), (content,) = self.augmentation(to_float(batch.style)), self.augmentation(to_float(batch.content))
        return StylePairs(style, content)

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Do nothing: there are no adaptive modules."""
        del losses, num_images

    @torch.no_grad()
    def measure(self, networks: Mapping[str, nn.Module], batch: StylePairs) -> dict[str, Tensor]:
        """Measure held-out pairs, [N] each, in the features of the supervising network, which is not independent."""
        scorer = StyleScorer(self.frozen["perceptual"], self.content_layers)
        return score_pairs(scorer, self.build_model(networks), batch)

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the mean of each column as `validation_<name>`, and the style loss over that of the contents."""
        return summarise_scores(columns)


@torch.no_grad()
def score_pairs(scorer: StyleScorer, model: nn.Module, batch: StylePairs) -> dict[str, Tensor]:
    """Paint the contents of a uint8 batch in its styles and score the outputs, [N] by name, a few rows at a time.

    The feature maps of all rows of a validation at once would take gigabytes.
    """
    parts: list[dict[str, Tensor]] = []
    for style, content in zip(*(torch.split(part, SCORED_ROWS) for part in (batch.style, batch.content)), strict=True):
        pictures = (to_float(style), to_float(content))
        parts.append(scorer.score(model(*pictures), pictures))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def summarise_scores(columns: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean of each score as `validation_<name>`, and the ratios of means."""
    means = {name: float(column.mean()) for name, column in columns.items()}
    for name, (above, below) in StyleScorer.ratios.items():
        if means.get(below):
            means[name] = means[above] / means[below]
    return {f"validation_{name}": value for name, value in means.items()}
