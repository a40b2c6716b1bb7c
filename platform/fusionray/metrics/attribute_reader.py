"""A reader of pose, expression and light: the network by which the attributes of fused pictures are measured.

The attributes recipe trains it. What it reads is what the crop shows: see `synthetic.attributes_in_crop`.

Shape suffixes: N batch, M population, A attributes of a picture, K readings, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section
from fusionray.data import synthetic
from fusionray.nets.generator import EMBEDDING_LENGTH
from fusionray.nets.identity import IdentityEncoder, IdentityEncoderConfig

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
