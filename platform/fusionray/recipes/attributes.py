"""Attributes recipe: a reader of pose, expression and light, with which the evaluation judges fused pictures.

It learns from synthetic faces, of which these are known, and reads them off any aligned face. What it reads is what the
crop shows: see `synthetic.attributes_in_crop`.

Shape suffixes: N batch, M population, A attributes of a picture, K readings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section, in_unit
from fusionray.data import synthetic
from fusionray.nets.generator import EMBEDDING_LENGTH
from fusionray.nets.identity import IdentityEncoder, IdentityEncoderConfig
from fusionray.recipes.augmentation import AugmentationConfig
from fusionray.recipes.identity import ArcFaceCrop
from fusionray.recipes.recipe import Losses, OptimizerConfig, Phase, PhaseInput
from fusionray.recipes.single_faces import FacePreparation, NothingToShow, ParameterStandard
from fusionray.types import Batch, FaceBatch

POSE = ("yaw", "pitch", "roll")
EXPRESSION = (
    "smile",
    "mouth_open",
    "brow_raise",
    "brow_furrow",
    "eye_closure",
    "squint",
    "gaze_x",
    "gaze_y",
)
LIGHT = ("light_azimuth", "light_elevation", "light_intensity", "ambient", "light_warmth")
GROUPS: Mapping[str, tuple[str, ...]] = {"pose": POSE, "expression": EXPRESSION, "light": LIGHT}
READINGS = (*POSE, *EXPRESSION, *LIGHT)


class AttributesRecipeConfig(Section):
    """Attributes recipe: a model that reads pose, expression and light.

    It neither mirrors nor rotates its pictures: they would then show other attributes.
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
    least_resolution: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Strongest random loss of resolution, so that the model also reads soft fusions; 1: none.",
        json_schema_extra=in_unit("share"),
    )
    optimizer: OptimizerConfig = OptimizerConfig(kind="adamw", base_lr=1e-3, betas=(0.9, 0.99), weight_decay=0.05)


@dataclass(frozen=True)
class KnownFaces(Batch):
    """Prepared: `face` [N,3,112,112] in [-1,1], `wanted` [N,K] standardised attributes."""

    face: Tensor
    wanted: Tensor


class AttributeReaderConfig(Section):
    """The size of a reader, and what it reads."""

    encoder: IdentityEncoderConfig
    names: tuple[str, ...] = Field(READINGS, description="readings in their order, names of the world's attributes")


class AttributeReader(nn.Module):
    """Read attributes off aligned faces.

    `standard` holds mean and deviation of the world's population, by which errors are put on one scale.
    """

    def __init__(self, config: AttributeReaderConfig, standard: ParameterStandard) -> None:
        super().__init__()
        self.config = config
        self.encoder = IdentityEncoder(config.encoder)
        self.head = nn.Linear(EMBEDDING_LENGTH, len(config.names))
        self.standard = standard

    @property
    def names(self) -> tuple[str, ...]:
        """Name the readings, column by column."""
        return self.config.names

    def forward(self, face: Tensor) -> Tensor:
        """Read `face` [N,3,112,112] RGB in [-1,1], aligned to arcface_112, as [N,K] float32 in the world's units."""
        standardised_NK = self.head(self.encoder(face) * math.sqrt(EMBEDDING_LENGTH))
        return self.standard.restore(standardised_NK.float())

    def select(self, attributes_NA: Tensor) -> Tensor:
        """Take the columns that are read out of all attributes of the world, [N,K]."""
        return select_attributes(attributes_NA, self.names)

    def measure_errors(self, readings_NK: Tensor, wanted_NK: Tensor) -> dict[str, Tensor]:
        """Give each row's mean absolute error over each group [N]: pose in degrees, others in population deviations."""
        error_NK = (readings_NK - wanted_NK).abs()
        scaled_NK = error_NK / self.standard.deviation
        return {
            group: (error_NK if group == "pose" else scaled_NK)[:, columns].mean(dim=1)
            for group, columns in group_columns(self.names).items()
        }


def select_attributes(attributes_NA: Tensor, names: Sequence[str]) -> Tensor:
    """Take columns out of the attributes of pictures by name, [N,K]."""
    return attributes_NA[:, [synthetic.ATTRIBUTE_NAMES.index(name) for name in names]]


def group_columns(names: Sequence[str]) -> dict[str, list[int]]:
    """Find the columns of each group among readings of these names."""
    return {group: [names.index(name) for name in members] for group, members in GROUPS.items()}


class AttributesRecipe(NothingToShow):
    """Learn to read what the synthetic world drew."""

    averaged = frozenset({"reader"})

    def __init__(self, config: AttributesRecipeConfig, *, face_view_23: Tensor) -> None:
        self.config = config
        self.reader_config = AttributeReaderConfig(encoder=config.encoder)
        population_MK = select_attributes(synthetic.sample_attributes(1024, seed=0), self.reader_config.names)
        self.standard = ParameterStandard.measure(population_MK)
        jitter = config.colour_jitter
        # Hue least of all: it is what warm light changes.
        augmentation = AugmentationConfig(
            rotation_degrees=0, brightness=jitter, contrast=jitter, saturation=jitter, hue=jitter / 10, flip=0
        )
        self.faces = FacePreparation(ArcFaceCrop(face_view_23), augmentation, config.least_resolution)
        self.networks: Mapping[str, nn.Module] = {"reader": AttributeReader(self.reader_config, self.standard)}
        self.frozen: Mapping[str, nn.Module] = {"faces": self.faces, "standard": self.standard}
        self.adaptive: Mapping[str, nn.Module] = {}
        self.optimizers = {"reader": config.optimizer}
        self.phases = (Phase("read", "reader", self.read),)

    def prepare(self, batch: FaceBatch) -> KnownFaces:
        """Cut out the faces, blur some, and put what they show on one scale."""
        assert batch.attributes is not None, "photographs are refused before training"
        return KnownFaces(self.faces(batch.image), self.standard(select_attributes(batch.attributes, READINGS)))

    def read(self, step: PhaseInput[KnownFaces]) -> Losses:
        """Take the distance of readings to the truth, standardised: smooth L1, every reading counts the same."""
        readings_NK = self.standard(step.networks["reader"](step.batch.face))
        loss_NK = F.smooth_l1_loss(readings_NK, step.batch.wanted, reduction="none")
        parts = {group: loss_NK[:, columns].mean() for group, columns in group_columns(READINGS).items()}
        return Losses(loss_NK.mean(), parts)

    @torch.no_grad()
    def evaluate(self, networks: Mapping[str, nn.Module], batches: Iterable[FaceBatch]) -> dict[str, float]:
        """Read held-out people: mean absolute errors, pose in degrees, the others in population deviations."""
        reader = networks["reader"]
        assert isinstance(reader, AttributeReader)
        errors: dict[str, list[Tensor]] = {group: [] for group in GROUPS}
        for batch in batches:
            assert batch.attributes is not None
            found = reader.measure_errors(reader(self.faces.cut(batch.image)), reader.select(batch.attributes))
            for group, error_N in found.items():
                errors[group].append(error_N)
        return {f"validation_{group}_error": float(torch.cat(parts).mean()) for group, parts in errors.items() if parts}
