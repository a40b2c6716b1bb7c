"""AdaIN: the features of a content get the statistics of a style's, and a decoder makes a picture of them.

The baseline of arbitrary style transfer, with any frozen encoder that halves the resolution from map to map.

Source: Huang and Belongie 2017, section 6.1 (a decoder that mirrors the encoder, without norms, and enlarges by
repeating pixels).

Shape suffixes: N batch, C channels of the deepest map, H rows, W columns, h, w those of the deepest map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionray.nets.style_transfer import convolve, measure_statistics, replace_statistics

Features = Callable[[Tensor], list[Tensor]]


class AdainDecoder(nn.Module):
    """Make pictures of the deepest feature map of an encoder; `channels`: those of its maps, the finest first."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(convolve(before, after) for before, after in pairwise(reversed(channels)))
        self.to_picture = convolve(channels[0], 3)

    @property
    def stride(self) -> int:
        """Return the pixels of a picture to a row of features; sides of pictures are multiples of it."""
        return int(2 ** len(self.stages))

    def forward(self, features_NChw: Tensor) -> Tensor:
        """Return pictures [N,3,H,W] in [-1,1]; H and W are `stride` times those of the features."""
        hidden = features_NChw
        for stage in self.stages:
            hidden = F.interpolate(F.relu(stage(hidden)), scale_factor=2.0, mode="nearest")
        picture: Tensor = self.to_picture(hidden)
        return torch.tanh(picture)


class AdainNetwork(nn.Module):
    """Encoder and decoder as one model; `features` gives the maps of pictures in [-1,1], the finest first."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, features: Features) -> None:
        super().__init__()
        self.encoder, self.decoder, self.features = encoder, decoder, features

    def forward(self, style_N3HW: Tensor, content_N3HW: Tensor) -> Tensor:
        """Paint contents in the styles of other pictures, all in [-1,1]; sides are multiples of the stride."""
        painted: Tensor = self.decoder(adapt_features(self.features(content_N3HW)[-1], self.features(style_N3HW)[-1]))
        return painted


def adapt_features(content_NChw: Tensor, style_NChw: Tensor) -> Tensor:
    """Give features of contents the mean and deviation of each channel of styles: what the decoder is given."""
    return replace_statistics(content_NChw, measure_statistics(content_NChw), measure_statistics(style_NChw))
