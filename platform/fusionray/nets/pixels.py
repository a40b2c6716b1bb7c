"""Conversion of pictures between uint8 and the networks' float range [-1,1], and a default face region.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_float(image_uint8: Tensor) -> Tensor:
    """Map uint8 [0,255] to float32 [-1,1]."""
    return image_uint8.to(torch.float32) / 127.5 - 1


def to_uint8(image: Tensor) -> Tensor:
    """Map float [-1,1] to uint8 [0,255]."""
    return ((image.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def elliptic_region(image_NCHW: Tensor) -> Tensor:
    """Return the usual region of an aligned face, a soft ellipse around the crop's centre: [N,1,S,S] in [0,1]."""
    size = image_NCHW.shape[-1]
    axis = (torch.arange(size, device=image_NCHW.device, dtype=torch.float32) + 0.5) / size * 2 - 1
    radius_HW = ((axis[:, None] / 0.95).square() + (axis[None, :] / 0.8).square()).sqrt()
    region_HW = torch.sigmoid((1 - radius_HW) * 12)
    return region_HW.expand(len(image_NCHW), 1, size, size)
