"""What recipes that learn from one face at a time share: how a crop becomes a face.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fusionray.data.synthetic import attributes_in_crop
from fusionray.nets.pixels import to_float
from fusionray.recipes.augmentation import Augmentation, AugmentationConfig, degrade_resolution
from fusionray.recipes.family import TrainSettings
from fusionray.types import DecodedRows, FaceBatch


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


def collate_faces(roles: Sequence[DecodedRows]) -> FaceBatch:
    """Make a batch of the rows of one role; of synthetic faces, with what they show as the crop shows it."""
    (rows,) = roles
    if not rows.columns:
        return FaceBatch(rows.image, rows.label)
    view_N23 = rows.columns["view"].reshape(-1, 2, 3)
    attributes = attributes_in_crop(rows.columns["attribute_parameters"], view_N23)
    return FaceBatch(rows.image, rows.label, rows.columns["identity_parameters"], attributes)


def draw_crops(config: TrainSettings, count: int) -> tuple[Tensor, Tensor]:
    """Draw two crops of noise for each row, uint8 [N,3,S,S]: what a dry run takes its step on."""
    generator = torch.Generator().manual_seed(config.run.seed)
    shape = (count, 3, config.data.size, config.data.size)
    first, second = (torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator) for _ in range(2))
    return first, second
