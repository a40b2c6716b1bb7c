"""The multi-scale patch discriminator.

Source: pix2pixHD (Wang et al. 2018), section 3.2, with spectral normalisation left out in favour of R1.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section


class DiscriminatorConfig(Section):
    """The size of the discriminator."""

    channels: tuple[int, ...] = Field(
        (32, 64, 128), description="Width of each layer; every layer halves the resolution."
    )
    scales: int = Field(
        2, ge=1, description="Number of discriminators; they see the picture at 1, 1/2, 1/4, ... of its size."
    )


class DiscriminatorOutput(NamedTuple):
    """For each scale: patch logits [N,1,h,w], and the feature map of each layer."""

    logits: list[Tensor]
    features: list[list[Tensor]]


class PatchDiscriminator(nn.Module):
    """Classify overlapping patches as real or fake at one scale."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, channels[0], 4, stride=2, padding=1)]
        layers += [nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in pairwise(channels)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Conv2d(channels[-1], 1, 3, padding=1)

    def forward(self, image_NCHW: Tensor) -> tuple[Tensor, list[Tensor]]:
        features = []
        hidden = image_NCHW
        for layer in self.layers:
            # The gain sqrt(2) preserves the variance through a leaky ReLU of slope 0.2.
            hidden = F.leaky_relu(layer(hidden), 0.2) * math.sqrt(2)
            features.append(hidden)
        return self.head(hidden), features


class Discriminator(nn.Module):
    """Classify the patches of a picture at several scales."""

    def __init__(self, config: DiscriminatorConfig) -> None:
        super().__init__()
        self.config = config
        self.scales = nn.ModuleList(PatchDiscriminator(config.channels) for _ in range(config.scales))

    def forward(self, image: Tensor) -> DiscriminatorOutput:
        """Classify `image` [N,3,S,S] in [-1,1]; higher logits mean more real."""
        logits, features = [], []
        for index, scale in enumerate(self.scales):
            scaled = image if index == 0 else F.avg_pool2d(image, 2**index)
            patch_logits, patch_features = scale(scaled)
            logits.append(patch_logits)
            features.append(patch_features)
        return DiscriminatorOutput(logits, features)
