"""The identity encoder: a residual network that maps an aligned 112 px face to a unit-length embedding.

Source: ArcFace (Deng et al. 2019), section 3.1: improved residual unit (BN-Conv-BN-PReLU-Conv-BN), BN-FC-BN head.
"""

from __future__ import annotations

import math
from itertools import accumulate

import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusionray.config import Section, in_unit
from fusionray.nets.blocks import ActivationCheckpointedBlock
from fusionray.nets.generator import EMBEDDING_LENGTH
from fusionray.nets.prelu import PReLU

IDENTITY_SIZE = 112
IDENTITY_TEMPLATE = "arcface_112"


class IdentityEncoderConfig(Section):
    """The size of an identity encoder; IResNet-50 is channels (64,128,256,512), blocks (3,4,14,3), stem_stride 1."""

    channels: tuple[int, ...] = Field((32, 64, 128, 256), description="Width of each stage.")
    blocks: tuple[int, ...] = Field((1, 1, 1, 1), description="Residual units of each stage.")
    stem_stride: int = Field(
        2,
        ge=1,
        le=4,
        description="Stride of the first convolution; above 1 is faster and loses detail.",
        json_schema_extra=in_unit("pixels"),
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Share of features that are dropped before the embedding layer."
    )

    @model_validator(mode="after")
    def check_stages(self) -> IdentityEncoderConfig:
        if len(self.channels) != len(self.blocks):
            raise ValueError(f"channels {self.channels} and blocks {self.blocks} must name the same number of stages")
        return self


class ResidualUnit(ActivationCheckpointedBlock):
    """The improved residual unit of ArcFace."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            PReLU(out_channels),
            nn.Conv2d(out_channels, out_channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.skip = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def compute(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.skip(x)
        return out


class IdentityEncoder(nn.Module):
    """Map aligned faces to identity embeddings."""

    def __init__(self, config: IdentityEncoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.channels[0]
        # Neighbouring kernel windows overlap by half; with a large stride, a kernel of 3 would skip pixels.
        kernel = max(3, 2 * config.stem_stride - 1)
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, kernel, stride=config.stem_stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(width),
            PReLU(width),
        )
        units: list[nn.Module] = []
        side = math.ceil(IDENTITY_SIZE / config.stem_stride)
        for out_width, count in zip(config.channels, config.blocks, strict=True):
            units.append(ResidualUnit(width, out_width, 2))
            units += [ResidualUnit(out_width, out_width, 1) for _ in range(count - 1)]
            width = out_width
            side = math.ceil(side / 2)
        self.stages = nn.Sequential(*units)
        self.norm = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(config.dropout)
        self.project = nn.Linear(width * side * side, EMBEDDING_LENGTH, bias=False)
        self.embedding_norm = nn.BatchNorm1d(EMBEDDING_LENGTH)

    def forward(self, face: Tensor) -> Tensor:
        """Embed `face` [N,3,112,112] RGB in [-1,1], aligned to arcface_112, as [N,512] of unit length (float32)."""
        hidden = self.dropout(self.norm(self.stages(self.stem(face))).flatten(1))
        return F.normalize(self.embedding_norm(self.project(hidden)).float())

    def features(self, face: Tensor) -> list[Tensor]:
        """Return the feature map [N,C,H,W] after each stage, the finest first; `face` as in `forward`."""
        hidden = self.stem(face)
        maps: list[Tensor] = []
        ends = set(accumulate(self.config.blocks))
        for number, unit in enumerate(self.stages, start=1):
            hidden = unit(hidden)
            if number in ends:
                maps.append(hidden)
        return maps
