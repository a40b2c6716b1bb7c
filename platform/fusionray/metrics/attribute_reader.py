"""The attribute reader: a network that estimates pose, expression and light from an aligned face.

The attributes recipe trains it. Attributes are those of the crop, not of the picture: see
`synthetic.attributes_in_crop`.

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


class ParameterScaler(nn.Module):
    """Scale parameters of the synthetic world to mean 0 and standard deviation 1 over its population.

    `mean` and `deviation` [P] are buffers, so a checkpoint holds them together with the weights of the network that
    predicts on this scale.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    @classmethod
    def fit(cls, population_MP: Tensor) -> ParameterScaler:
        """Compute mean and standard deviation of a population."""
        # The floor keeps a parameter that hardly varies from being scaled up.
        return cls(population_MP.mean(dim=0), population_MP.std(dim=0).clamp_min(1e-2))

    @classmethod
    def identity(cls, num_parameters: int) -> ParameterScaler:
        """Build a scaler that changes nothing, whose buffers a checkpoint then fills."""
        return cls(torch.zeros(num_parameters), torch.ones(num_parameters))

    def forward(self, values_NP: Tensor) -> Tensor:
        """Standardise values."""
        return (values_NP - self.mean) / self.deviation

    def inverse(self, standardised_NP: Tensor) -> Tensor:
        """Return standardised values in their own units."""
        return standardised_NP * self.deviation + self.mean


class AttributeReaderConfig(Section):
    """The encoder of an attribute reader, and the attributes that it reads."""

    encoder: IdentityEncoderConfig
    names: tuple[str, ...] = Field(READINGS, description="readings in their order, names of the world's attributes")


class AttributeReader(nn.Module):
    """Estimate attributes of aligned faces.

    `standard` holds mean and deviation of the world's population, which put errors on one scale.
    """

    def __init__(self, config: AttributeReaderConfig, standard: ParameterScaler) -> None:
        super().__init__()
        self.config = config
        self.encoder = IdentityEncoder(config.encoder)
        self.head = nn.Linear(EMBEDDING_LENGTH, len(config.names))
        self.standard = standard

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the readings, in the order of the columns."""
        return self.config.names

    def forward(self, face: Tensor) -> Tensor:
        """Read `face` [N,3,112,112] RGB in [-1,1], aligned to arcface_112, as [N,K] float32 in the world's units."""
        standardised_NK = self.head(self.encoder(face) * math.sqrt(EMBEDDING_LENGTH))
        return self.standard.inverse(standardised_NK.float())

    def select(self, attributes_NA: Tensor) -> Tensor:
        """Select the columns that the network reads from all attributes of the world: [N,K]."""
        return select_attributes(attributes_NA, self.names)

    def measure_errors(self, readings_NK: Tensor, true_NK: Tensor) -> dict[str, Tensor]:
        """Return the mean absolute error [N] over each group: pose in degrees, others in population deviations."""
        error_NK = (readings_NK - true_NK).abs()
        scaled_NK = error_NK / self.standard.deviation
        return {
            group: select_columns(error_NK if group == "pose" else scaled_NK, columns).mean(dim=1)
            for group, columns in group_columns(self.names).items()
        }


def select_attributes(attributes_NA: Tensor, names: Sequence[str]) -> Tensor:
    """Select attributes by name: [N,K]."""
    return select_columns(attributes_NA, [synthetic.ATTRIBUTE_NAMES.index(name) for name in names])


def select_columns(values_NA: Tensor, columns: Sequence[int]) -> Tensor:
    """Select columns by their numbers: [N,K]. To index a tensor on a GPU by a list, the host would wait for it."""
    return torch.stack([values_NA[:, column] for column in columns], dim=1)


def group_columns(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the column indices of each group among readings of these names."""
    return {group: [names.index(name) for name in members] for group, members in GROUPS.items()}
