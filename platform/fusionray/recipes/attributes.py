"""Attributes recipe: train the attribute reader, by which the evaluation measures pose, expression and light.

It trains on synthetic faces, whose attributes are known. Attributes are those of the crop, not of the picture: see
`synthetic.attributes_in_crop`.

Shape suffixes: N batch, M population, K readings.
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
from fusionray.data import synthetic
from fusionray.metrics.attribute_reader import (
    READINGS,
    AttributeReader,
    AttributeReaderConfig,
    ParameterScaler,
    group_columns,
    select_attributes,
    select_columns,
)
from fusionray.nets.identity import IdentityEncoderConfig
from fusionray.recipes.arcface_crop import ArcFaceCrop
from fusionray.recipes.augmentation import AugmentationConfig
from fusionray.recipes.family import RecipeConfig
from fusionray.recipes.recipe import Losses, OptimizerConfig, Phase, PhaseInput
from fusionray.recipes.single_faces import FacePreparation, SingleFaceRecipe
from fusionray.types import Batch, FaceBatch


class AttributesRecipeConfig(RecipeConfig):
    """Attributes recipe: a model that reads pose, expression and light.

    It neither mirrors nor rotates pictures, because that changes their attributes.
    """

    name: Literal["attributes"] = Field("attributes", description="Selects the attributes recipe.")
    encoder: IdentityEncoderConfig = IdentityEncoderConfig(channels=(32, 64, 128), blocks=(2, 2, 2), stem_stride=4)
    colour_jitter: float = Field(
        0.02,
        ge=0,
        lt=1,
        description="Largest change of brightness, contrast and saturation; small, because light is read from them.",
        json_schema_extra=in_unit("share"),
    )
    min_resolution: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Strongest random loss of resolution, so that the model also reads soft fusions; 1: none.",
        json_schema_extra=in_unit("share"),
    )
    optimizer: OptimizerConfig = OptimizerConfig(kind="adamw", base_lr=1e-3, betas=(0.9, 0.99), weight_decay=0.05)


@dataclass(frozen=True)
class FacesWithAttributes(Batch):
    """Prepared batch: `face` [N,3,112,112] in [-1,1], `attributes` [N,K] standardised."""

    face: Tensor
    attributes: Tensor


class AttributesRecipe(SingleFaceRecipe):
    """Train a reader to estimate the attributes with which the synthetic world was rendered."""

    ema_names = frozenset({"reader"})

    def __init__(self, config: AttributesRecipeConfig, *, face_view_23: Tensor) -> None:
        self.config = config
        self.reader_config = AttributeReaderConfig(encoder=config.encoder)
        population_MK = select_attributes(synthetic.sample_attributes(1024, seed=0), self.reader_config.names)
        self.standard = ParameterScaler.fit(population_MK)
        jitter = config.colour_jitter
        # Smallest change for hue, because warm light shows in it.
        augmentation = AugmentationConfig(
            rotation_degrees=0, brightness=jitter, contrast=jitter, saturation=jitter, hue=jitter / 10, flip=0
        )
        self.faces = FacePreparation(ArcFaceCrop(face_view_23), augmentation, config.min_resolution)
        self.networks: Mapping[str, nn.Module] = {"reader": AttributeReader(self.reader_config, self.standard)}
        self.frozen: Mapping[str, nn.Module] = {"faces": self.faces, "standard": self.standard}
        self.adaptive: Mapping[str, nn.Module] = {}
        self.optimizers = {"reader": config.optimizer}
        self.phases = (Phase("read", "reader", self.read),)

    def prepare(self, batch: FaceBatch) -> FacesWithAttributes:
        """Crop and augment the faces, and standardise their attributes."""
        assert batch.attributes is not None, "`needs_parameters` refuses photographs before training"
        return FacesWithAttributes(
            self.faces(batch.image), self.standard(select_attributes(batch.attributes, READINGS))
        )

    def read(self, step: PhaseInput[FacesWithAttributes]) -> Losses:
        """Smooth L1 between standardised readings and true attributes; every attribute has equal weight."""
        readings_NK = self.standard(step.networks["reader"](step.batch.face))
        loss_NK = F.smooth_l1_loss(readings_NK, step.batch.attributes, reduction="none")
        parts = {group: select_columns(loss_NK, columns).mean() for group, columns in group_columns(READINGS).items()}
        return Losses(loss_NK.mean(), parts)

    @torch.no_grad()
    def measure(self, networks: Mapping[str, nn.Module], batch: FaceBatch) -> dict[str, Tensor]:
        """Measure absolute errors [N] by group: pose in degrees, the others in population deviations."""
        reader = networks["reader"]
        assert isinstance(reader, AttributeReader)
        assert batch.attributes is not None
        return reader.measure_errors(reader(self.faces.crop(batch.image)), reader.select(batch.attributes))

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the mean error of each group."""
        return {f"validation_{group}_error": float(error_N.mean()) for group, error_N in columns.items()}
