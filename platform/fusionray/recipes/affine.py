"""Affine maps of positions and of colours, one for each row of a batch; augmentations and face crops use them.

A *view* [N,2,3] is an affine map of positions from the result to the picture. All functions compute in float32 also
under autocast: in bfloat16 a grid of 112 positions would be off by up to a quarter of a pixel. Positions are computed
without matrix products, for which a GPU may take TF32: its ten bits are off by a tenth of a pixel.

Shape suffixes: N rows, C channels, H rows of pixels, W columns, S side; views [N,2,3], colour matrices [N,3,3].
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def warp_affine(
    picture_NCHW: Tensor, view_N23: Tensor, size: int, padding: Literal["border", "reflection"] = "border"
) -> Tensor:
    """Sample float32 [N,C,S,S], S = `size`, from pictures, bilinearly.

    `view_N23` maps positions in the result to positions in the picture, both squares [-1,1]; one row applies to all
    pictures.
    """
    with torch.autocast(picture_NCHW.device.type, enabled=False):
        grid_NSS2 = build_grid(view_N23.float(), size).expand(len(picture_NCHW), -1, -1, -1)
        return F.grid_sample(picture_NCHW.float(), grid_NSS2, padding_mode=padding, align_corners=False)


def build_grid(view_N23: Tensor, size: int) -> Tensor:
    """Map the pixel centres of a square [-1,1] of `size` pixels: [N,S,S,2]."""
    axis_S = (torch.arange(size, device=view_N23.device, dtype=view_N23.dtype) + 0.5) * (2 / size) - 1
    # The map is a sum of a term for the column and a term for the row, which is cheaper than a matrix product.
    across_NS2 = axis_S[:, None] * view_N23[:, None, :, 0]
    down_NS2 = axis_S[:, None] * view_N23[:, None, :, 1] + view_N23[:, None, :, 2]
    return down_NS2[:, :, None] + across_NS2[:, None]


def build_views(flip_N: Tensor, angle_N: Tensor, scale_N: Tensor, shift_N2: Tensor) -> Tensor:
    """Compose rotation (radians), scale, mirror (-1 or 1) and shift of the square [-1,1] about its centre: [N,2,3]."""
    cos, sin = scale_N * torch.cos(angle_N), scale_N * torch.sin(angle_N)
    rows = [flip_N * cos, flip_N * -sin, shift_N2[:, 0], sin, cos, shift_N2[:, 1]]
    return torch.stack(rows, dim=1).view(-1, 2, 3)


def unit_to_signed(view_N23: Tensor) -> Tensor:
    """Rewrite affine maps between unit squares as maps between the squares [-1,1]."""
    linear, offset = view_N23[:, :, :2], view_N23[:, :, 2]
    return torch.cat([linear, (linear.sum(dim=2) + 2 * offset - 1)[:, :, None]], dim=2)


def compose_views(outer_N23: Tensor, inner_N23: Tensor) -> Tensor:
    """Apply `inner` first, then `outer`."""
    product_N23 = (outer_N23[:, :, :2, None] * inner_N23[:, None]).sum(dim=2)
    return torch.cat([product_N23[:, :, :2], product_N23[:, :, 2:] + outer_N23[:, :, 2:]], dim=2)


def jitter_views(like_NCHW: Tensor) -> Tensor:
    """Draw small random rotations, scalings and shifts of the unit square about its centre: [N,2,3]."""
    count, device = len(like_NCHW), like_NCHW.device
    angle = (torch.rand(count, device=device) * 2 - 1) * math.radians(6)
    scale = 1 + (torch.rand(count, device=device) * 2 - 1) * 0.06
    shift_N2 = (torch.rand(count, 2, device=device) * 2 - 1) * 0.03
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    # Rotation and scale keep the centre in place: 0.5 - A 0.5.
    across = 0.5 - 0.5 * (cos - sin) + shift_N2[:, 0]
    down = 0.5 - 0.5 * (sin + cos) + shift_N2[:, 1]
    return torch.stack([cos, -sin, across, sin, cos, down], dim=1).view(-1, 2, 3)


def build_colours(contrast_N: Tensor, saturation_N: Tensor, angle_N: Tensor) -> Tensor:
    """Compose contrast c, saturation s and a hue rotation by `angle` (radians) into matrices [N,3,3] for RGB.

    With v the grey axis (1,1,1) / sqrt 3: c (v v' + s (cos a (1 - v v') + sin a [v]x)).

    Source: Karras et al. 2020, "Training generative adversarial networks with limited data", appendix B.
    """
    grey = contrast_N / 3
    cos, sin = grey * saturation_N * torch.cos(angle_N), grey * saturation_N * torch.sin(angle_N) * math.sqrt(3)
    same, left, right = grey + 2 * cos, grey - cos - sin, grey - cos + sin
    # The matrix is circulant, because the grey axis is symmetric in the three colours.
    return torch.stack([same, left, right, right, same, left, left, right, same], dim=1).view(-1, 3, 3)


def recolour(picture_N3HW: Tensor, linear_N33: Tensor, offset_N: Tensor) -> Tensor:
    """Apply a colour matrix to every pixel, and add an offset to all three channels."""
    with torch.autocast(picture_N3HW.device.type, enabled=False):
        offset_N31 = offset_N[:, None, None].expand(-1, 3, 1)
        return torch.baddbmm(offset_N31, linear_N33, picture_N3HW.flatten(2)).view(picture_N3HW.shape)
