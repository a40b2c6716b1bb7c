"""What recipes that learn from one face at a time share: how a crop becomes a face, and parameters on one scale.

Shape suffixes: N batch, M population, C channels, H rows, W columns, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fusionray.recipes.augmentation import Augmentation, AugmentationConfig, degrade_resolution
from fusionray.recipes.recipe import to_float
from fusionray.types import FaceBatch


class NothingToShow:
    """The parts of a recipe that reading one face has no use for: nothing follows its training, it draws no picture."""

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Do nothing."""

    def preview(self, networks: Mapping[str, nn.Module], batch: FaceBatch) -> Tensor | None:
        """Show nothing."""
        del networks, batch
        return None


class FacePreparation(nn.Module):
    """Turn uint8 crops [N,3,S,S] into faces [N,3,112,112] in [-1,1] to learn from: augmented, cut out, blurred.

    `window` cuts the face out of a crop; `least_resolution` is the strongest random loss of resolution, 1 none.
    """

    def __init__(self, window: nn.Module, augmentation: AugmentationConfig, least_resolution: float) -> None:
        super().__init__()
        self.window = window
        self.augmentation = Augmentation(augmentation)
        self.least_resolution = least_resolution

    def forward(self, image_NCHW: Tensor) -> Tensor:
        (image,) = self.augmentation(to_float(image_NCHW))
        return degrade_resolution(self.window(image), self.least_resolution)

    def cut(self, image_NCHW: Tensor) -> Tensor:
        """Cut the faces out and leave them as they are: for evaluation."""
        face: Tensor = self.window(to_float(image_NCHW))
        return face


class ParameterStandard(nn.Module):
    """Scale parameters of the synthetic world to mean 0 and deviation 1 over its population.

    `mean` and `deviation` [P] are buffers: they travel with the weights of whatever predicts on this scale.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    @classmethod
    def measure(cls, population_MP: Tensor) -> ParameterStandard:
        """Measure a population."""
        # A parameter that hardly varies is not blown up.
        return cls(population_MP.mean(dim=0), population_MP.std(dim=0).clamp_min(1e-2))

    @classmethod
    def blank(cls, num_parameters: int) -> ParameterStandard:
        """Leave parameters as they are, until the weights of a network bring their scale along."""
        return cls(torch.zeros(num_parameters), torch.ones(num_parameters))

    def forward(self, values_NP: Tensor) -> Tensor:
        """Standardise."""
        return (values_NP - self.mean) / self.deviation

    def restore(self, standardised_NP: Tensor) -> Tensor:
        """Give standardised values their own units back."""
        return standardised_NP * self.deviation + self.mean
