"""Building blocks of the generator.

Shape suffixes: N batch, C channels, H rows, W columns, S style (identity code) length.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ModulatedConv(nn.Module):
    """3x3 convolution whose weights are scaled by a style and demodulated to unit variance.

    The scaling is applied to input and output instead of to the weights: `conv(x, W * s) / |W * s|` equals
    `conv(x * s, W) / |W * s|`, and this form keeps the batch dynamic in an exported graph.

    Source: StyleGAN2 (Karras et al. 2020), section 2.2 and appendix B.
    """

    def __init__(self, in_channels: int, out_channels: int, style_length: int) -> None:
        super().__init__()
        fan_in = in_channels * 9
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels, 3, 3) / math.sqrt(fan_in))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.to_scale = nn.Linear(style_length, in_channels)
        nn.init.normal_(self.to_scale.weight, std=1 / math.sqrt(style_length))
        nn.init.ones_(self.to_scale.bias)

    def forward(self, x_NCHW: Tensor, style_NS: Tensor) -> Tensor:
        scale_NC = self.to_scale(style_NS)
        power_OC = self.weight.square().sum(dim=(2, 3))
        # In half precision the sum of squares can overflow: demodulate in float32.
        norm_NO = torch.rsqrt(F.linear(scale_NC.float().square(), power_OC.float()) + 1e-6)
        out = F.conv2d(x_NCHW * scale_NC[:, :, None, None], self.weight, padding=1)
        modulated: Tensor = out * norm_NO[:, :, None, None].to(out.dtype) + self.bias[:, None, None].to(out.dtype)
        return modulated


class EncoderBlock(nn.Module):
    """Halve the resolution first, where the work is cheapest afterwards, then refine, with a residual path."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(count_groups(in_channels), in_channels)
        self.down = nn.Conv2d(in_channels, out_channels, 2, stride=2)
        self.conv = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.skip = nn.Conv2d(in_channels, out_channels, 1, bias=False)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        out: Tensor = self.conv(F.silu(self.down(F.silu(self.norm(x_NCHW))))) + self.skip(F.avg_pool2d(x_NCHW, 2))
        return out


class FusionBlock(nn.Module):
    """Inject the identity, then let a learned gate choose, pixel by pixel, between identity and target attributes.

    The gate is the attentional part of AAD; where it is 0 the target's own feature passes unchanged.

    Source: FaceShifter (Li et al. 2019), section 3.1 (AAD layer), with StyleGAN2 modulation as the identity path.
    """

    def __init__(self, in_channels: int, skip_channels: int, out_channels: int, style_length: int) -> None:
        super().__init__()
        self.below = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.attribute = nn.Conv2d(skip_channels, out_channels, 1)
        self.first = ModulatedConv(out_channels, out_channels, style_length)
        self.second = ModulatedConv(out_channels, out_channels, style_length)
        self.gate = nn.Conv2d(out_channels, 1, 3, padding=1)
        # sigmoid(1) = 0.73: begin on the identity side, or the gate closes before the identity path has learned
        nn.init.zeros_(self.gate.weight)
        nn.init.ones_(self.gate.bias)  # type: ignore[arg-type]

    def forward(self, x_NCHW: Tensor, skip_NCHW: Tensor, style_NS: Tensor) -> Tensor:
        """Join `x` [N,Cin,h,w] with the target's feature `skip` [N,Cskip,H,W], H = h or 2 h; returns [N,Cout,H,W]."""
        # Narrowed before it is enlarged, and added instead of stacked: both 3x3 convolutions see the output's width.
        below = self.below(x_NCHW)
        if below.shape[-1] != skip_NCHW.shape[-1]:
            below = upsample(below)
        attribute = self.attribute(skip_NCHW)
        hidden = F.silu(self.first(below + attribute, style_NS))
        identity_path = F.silu(self.second(hidden, style_NS))
        gate_N1HW = torch.sigmoid(self.gate(hidden))
        blended: Tensor = gate_N1HW * identity_path + (1 - gate_N1HW) * attribute
        return blended


def upsample(x_NCHW: Tensor) -> Tensor:
    """Double the resolution; bilinear, since pixel shuffle invites checkerboards."""
    return F.interpolate(x_NCHW, scale_factor=2.0, mode="bilinear", align_corners=False)


def count_groups(channels: int) -> int:
    """Choose the number of normalisation groups: 16 channels each where that divides."""
    return math.gcd(channels, max(1, channels // 16))


def count_parameters(module: nn.Module) -> int:
    """Count trained parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
