"""Face parser: says of each pixel of a head what it shows, such as face, neck or hair.

A small U-Net that works from half the resolution down; its answer is enlarged to the size of the picture.

Source: Ronneberger et al. 2015, U-Net; the classes follow CelebAMask-HQ (Lee et al. 2020), joined where a fusion treats
them alike.

Shape suffixes: N batch, C channels, H rows, W columns, P parts.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section


class FaceParserConfig(Section):
    """The size of a face parser."""

    channels: tuple[int, ...] = Field(
        (24, 48, 96, 128), min_length=2, description="Width at a half, a quarter, ... of the resolution."
    )

    @property
    def stride(self) -> int:
        """Return the number whose multiples the sides of pictures are."""
        return 1 << len(self.channels)


class FaceParser(nn.Module):
    """Map pictures to scores of `parts` parts for each pixel."""

    def __init__(self, config: FaceParserConfig, parts: int) -> None:
        super().__init__()
        self.config = config
        widths = (3, *config.channels)
        self.down = nn.ModuleList(build_stage(before, after, stride=2) for before, after in pairwise(widths))
        upward = tuple(reversed(config.channels))
        self.up = nn.ModuleList(build_stage(below + beside, beside, stride=1) for below, beside in pairwise(upward))
        self.head = nn.Conv2d(config.channels[0], parts, 1)

    def forward(self, picture_N3HW: Tensor) -> Tensor:
        """Score pictures in [-1,1]: float32 [N,P,H,W]; H and W are multiples of `config.stride`."""
        levels: list[Tensor] = []
        hidden = picture_N3HW
        for stage in self.down:
            hidden = stage(hidden)
            levels.append(hidden)
        for stage, beside in zip(self.up, reversed(levels[:-1]), strict=True):
            hidden = stage(torch.cat([F.interpolate(hidden, scale_factor=2.0, mode="nearest"), beside], dim=1))
        scores: Tensor = self.head(hidden).float()
        return F.interpolate(scores, scale_factor=2.0, mode="bilinear", align_corners=False)


class PartShares(nn.Module):
    """What is exported: a parser whose answer is the probability of each part, [N,P,H,W], which sum to 1."""

    def __init__(self, parser: FaceParser) -> None:
        super().__init__()
        self.parser = parser

    def forward(self, picture_N3HW: Tensor) -> Tensor:
        shares: Tensor = self.parser(picture_N3HW).softmax(dim=1)
        return shares


def build_stage(before: int, after: int, stride: int) -> nn.Sequential:
    """Build two convolutions with batch norm, which an inference graph folds into them."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
    )
