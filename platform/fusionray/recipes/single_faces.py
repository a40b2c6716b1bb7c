"""Common parts of recipes that train on single faces: a base class, and the preparation of crops.

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


class SingleFaceRecipe:
    """Base of recipes that train on single faces: without adaptive modules and without previews."""

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Do nothing: there are no adaptive modules."""

    def preview(self, networks: Mapping[str, nn.Module], batch: FaceBatch) -> Tensor | None:
        """Return None: the networks make no pictures."""
        del networks, batch
        return None


class FacePreparation(nn.Module):
    """Turn uint8 crops [N,3,S,S] into training faces [N,3,112,112] in [-1,1]: augmented, cropped, blurred.

    `face_crop` crops the face; `min_resolution` is the strongest random loss of resolution as a share; 1: none.
    """

    def __init__(self, face_crop: nn.Module, augmentation: AugmentationConfig, min_resolution: float) -> None:
        super().__init__()
        self.face_crop = face_crop
        self.augmentation = Augmentation(augmentation)
        self.min_resolution = min_resolution

    def forward(self, image_NCHW: Tensor) -> Tensor:
        (image,) = self.augmentation(to_float(image_NCHW))
        return degrade_resolution(self.face_crop(image), self.min_resolution)

    def crop(self, image_NCHW: Tensor) -> Tensor:
        """Crop the faces without augmentation, for evaluation."""
        face: Tensor = self.face_crop(to_float(image_NCHW))
        return face


def collate_faces(roles: Sequence[DecodedRows]) -> FaceBatch:
    """Batch the rows of the single role; batches of synthetic faces include traits and attributes."""
    (rows,) = roles
    if not rows.columns:
        return FaceBatch(rows.image, rows.label)
    view_N23 = rows.columns["view"].reshape(-1, 2, 3)
    attributes = attributes_in_crop(rows.columns["attribute_parameters"], view_N23)
    return FaceBatch(rows.image, rows.label, rows.columns["identity_parameters"], attributes)


def noise_crops(config: TrainSettings, count: int) -> tuple[Tensor, Tensor]:
    """Draw two sets of noise crops uint8 [N,3,S,S], for the step of a dry run."""
    generator = torch.Generator().manual_seed(config.run.seed)
    shape = (count, 3, config.data.size, config.data.size)
    first, second = (torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator) for _ in range(2))
    return first, second
