"""Arbitrary style transfer by one small feed-forward network: content encoder, style encoder, painter.

Everything is local but the mean and deviation of features in two places, before the two norms of the painter. A picture
of any size can therefore be painted in tiles, exactly, in three passes: encode (content features at a quarter of the
resolution), `paint_half`, `paint_full`; each norm takes the statistics of the whole picture from outside. Edges of
pictures are replicated, so a tile needs real pixels around it and nothing else.

Source: AdaIN (Huang and Belongie 2017), section 5; MicroAST (Wang et al. 2023), section 3, for micro encoders, two
places of statistics, and convolutions that the style modulates.

Shape suffixes: N batch, C channels, H rows, W columns, L style length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section, in_unit

# Sides of pictures are multiples of it: the content is encoded at this fraction of the resolution.
STRIDE = 4
# Pixels in each direction by which a pixel of the picture changes the output if all statistics are fixed.
RECEPTIVE_PIXELS = 36
# The same for content features at a quarter of the resolution, and for the features of `paint_half`.
CONTENT_PIXELS, HALF_PIXELS = 12, 24
FLOOR_VARIANCE = 1e-5
# Encoded styles are statistics of features of about 1; the bound only keeps a broken picture from breaking others.
LARGEST_STATISTIC = 100.0


class StyleNetworkConfig(Section):
    """The size of a style-transfer network."""

    full_channels: int = Field(
        12, ge=3, description="Channels at full resolution, where most pixels are.", json_schema_extra=in_unit("")
    )
    half_channels: int = Field(32, ge=4, description="Channels at half the resolution.", json_schema_extra=in_unit(""))
    quarter_channels: int = Field(
        64, ge=8, description="Channels at a quarter of the resolution.", json_schema_extra=in_unit("")
    )
    code_length: int = Field(
        64,
        ge=8,
        description="Length of the code by which the style modulates convolutions.",
        json_schema_extra=in_unit(""),
    )

    @property
    def style_length(self) -> int:
        """Return the length of an encoded style: mean and deviation of each channel in both places."""
        return 2 * (self.half_channels + self.quarter_channels)


class Statistics(NamedTuple):
    """Mean and standard deviation of each channel of a picture's features, float32 [N,C,1,1] each."""

    mean: Tensor
    deviation: Tensor


def measure_statistics(features_NCHW: Tensor) -> Statistics:
    """Measure the statistics of whole feature maps, in float32 under autocast too."""
    features = features_NCHW.float()
    mean = features.mean(dim=(2, 3), keepdim=True)
    variance = (features - mean).square().mean(dim=(2, 3), keepdim=True)
    return Statistics(mean, (variance + FLOOR_VARIANCE).sqrt())


def replace_statistics(features_NCHW: Tensor, own: Statistics, wanted: Statistics) -> Tensor:
    """Give features other statistics: (x - mean) / deviation x wanted deviation + wanted mean (AdaIN)."""
    scale = wanted.deviation / own.deviation
    shift = wanted.mean - own.mean * scale
    return features_NCHW * scale.to(features_NCHW.dtype) + shift.to(features_NCHW.dtype)


def convolve(in_channels: int, out_channels: int, side: int = 3, stride: int = 1) -> nn.Conv2d:
    """Build a convolution that replicates the edges of a picture."""
    return nn.Conv2d(in_channels, out_channels, side, stride, padding=side // 2, padding_mode="replicate")


class StyledConv(nn.Module):
    """A 3x3 convolution whose filters and biases the style scales and shifts; scaling its output is the same."""

    def __init__(self, channels: int, code_length: int) -> None:
        super().__init__()
        self.conv = convolve(channels, channels)
        self.to_modulation = nn.Linear(code_length, 2 * channels)
        nn.init.normal_(self.to_modulation.weight, std=0.02)
        nn.init.zeros_(self.to_modulation.bias)

    def forward(self, x_NCHW: Tensor, code_NL: Tensor) -> Tensor:
        scale_NC, shift_NC = self.to_modulation(code_NL).chunk(2, dim=1)
        out: Tensor = self.conv(x_NCHW)
        styled: Tensor = out * (1 + scale_NC[:, :, None, None]) + shift_NC[:, :, None, None]
        return styled


class MicroEncoder(nn.Module):
    """Encode pictures at half and at a quarter of their resolution, without any norm."""

    def __init__(self, config: StyleNetworkConfig) -> None:
        super().__init__()
        full, half, quarter = config.full_channels, config.half_channels, config.quarter_channels
        self.stem = convolve(3, full)
        self.to_half = convolve(full, half, stride=2)
        self.to_quarter = convolve(half, quarter, stride=2)
        self.refine = nn.ModuleList([convolve(quarter, quarter), convolve(quarter, quarter)])

    def forward(self, picture_N3HW: Tensor) -> tuple[Tensor, Tensor]:
        """Encode pictures in [-1,1]; return features [N,Ch,H/2,W/2] and [N,Cq,H/4,W/4]."""
        half = F.leaky_relu(self.to_half(F.leaky_relu(self.stem(picture_N3HW), 0.2)), 0.2)
        quarter = self.to_quarter(half)
        first, second = self.refine
        return half, quarter + second(F.leaky_relu(first(F.leaky_relu(quarter, 0.2)), 0.2))


class Painter(nn.Module):
    """Paint content features in a style; cut in two before its second norm."""

    def __init__(self, config: StyleNetworkConfig) -> None:
        super().__init__()
        full, half, quarter, code = (
            config.full_channels,
            config.half_channels,
            config.quarter_channels,
            config.code_length,
        )
        self.widths = (quarter, half)
        self.to_code = nn.Sequential(nn.Linear(config.style_length, code), nn.SiLU())
        self.deep = nn.ModuleList([StyledConv(quarter, code), StyledConv(quarter, code)])
        self.narrow = nn.Conv2d(quarter, half, 1)
        self.middle = StyledConv(half, code)
        self.fine = nn.ModuleList([StyledConv(half, code), StyledConv(half, code)])
        self.to_full = nn.Conv2d(half, full, 1)
        self.finish = convolve(full, full)
        self.to_picture = convolve(full, 3)

    def wanted_statistics(self, style_NL: Tensor) -> tuple[Statistics, Statistics]:
        """Return the statistics that a style wants at a quarter and at half of the resolution."""
        quarter, half = self.widths
        parts = torch.split(style_NL[:, :, None, None], [quarter, quarter, half, half], dim=1)
        return Statistics(parts[0], parts[1]), Statistics(parts[2], parts[3])

    def paint_half(self, content_NCHW: Tensor, own: Statistics, style_NL: Tensor) -> Tensor:
        """Paint content features [N,Cq,H/4,W/4] with their statistics; return features [N,Ch,H/2,W/2]."""
        code_NL, (wanted, _) = self.to_code(style_NL), self.wanted_statistics(style_NL)
        x = replace_statistics(content_NCHW, own, wanted)
        first, second = self.deep
        x = x + second(F.leaky_relu(first(F.leaky_relu(x, 0.2), code_NL), 0.2), code_NL)
        # Narrow before enlarging: the convolution at four times the pixels has half of the channels.
        x = F.interpolate(self.narrow(x), scale_factor=2.0, mode="nearest")
        painted: Tensor = self.middle(x, code_NL)
        return painted

    def paint_full(self, half_NCHW: Tensor, own: Statistics, style_NL: Tensor) -> Tensor:
        """Finish features [N,Ch,H/2,W/2] of `paint_half` with their statistics; return pictures [N,3,H,W] in [-1,1]."""
        code_NL, (_, wanted) = self.to_code(style_NL), self.wanted_statistics(style_NL)
        x = replace_statistics(half_NCHW, own, wanted)
        first, second = self.fine
        x = x + second(F.leaky_relu(first(F.leaky_relu(x, 0.2), code_NL), 0.2), code_NL)
        x = F.interpolate(self.to_full(F.leaky_relu(x, 0.2)), scale_factor=2.0, mode="nearest")
        x = x + self.finish(F.leaky_relu(x, 0.2))
        picture: Tensor = self.to_picture(F.leaky_relu(x, 0.2))
        return torch.tanh(picture)


class StyleTransferNetwork(nn.Module):
    """Paint a content picture in the style of another picture."""

    def __init__(self, config: StyleNetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.content = MicroEncoder(config)
        self.style = MicroEncoder(config)
        self.painter = Painter(config)

    def forward(self, style_N3HW: Tensor, content_N3HW: Tensor) -> Tensor:
        """Paint contents in the styles of other pictures, all in [-1,1], with sides that are multiples of `STRIDE`."""
        return self.paint(content_N3HW, self.encode_style(style_N3HW))

    def encode_style(self, picture_N3HW: Tensor) -> Tensor:
        """Encode the style of pictures in [-1,1] as [N,L], float32: the statistics of features in two places."""
        half, quarter = self.style(picture_N3HW)
        parts = (*measure_statistics(quarter), *measure_statistics(half))
        return torch.cat([part.flatten(1) for part in parts], dim=1).clamp(-LARGEST_STATISTIC, LARGEST_STATISTIC)

    def encode_content(self, picture_N3HW: Tensor) -> Tensor:
        """Encode the content of pictures in [-1,1]: [N,Cq,H/4,W/4]."""
        features: Tensor = self.content(picture_N3HW)[1]
        return features

    def paint(self, content_N3HW: Tensor, style_NL: Tensor) -> Tensor:
        """Paint contents in [-1,1] in encoded styles, with the statistics of these contents."""
        features = self.encode_content(content_N3HW)
        half = self.painter.paint_half(features, measure_statistics(features), style_NL)
        return self.painter.paint_full(half, measure_statistics(half), style_NL)


def mix_styles(styles: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Average encoded styles [N,L] with weights, which are divided by their sum.

    The style of the content itself as one of them makes the result weaker.
    """
    total = sum(weights)
    return torch.stack([style * (weight / total) for style, weight in zip(styles, weights, strict=True)]).sum(dim=0)
