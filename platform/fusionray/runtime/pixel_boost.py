"""Fuse faces that are larger than the model: each pixel phase of a large crop is a face of the model's size.

A crop of factor x S pixels is taken apart into factor squared crops of S pixels, whose pixels lie `factor` apart; the
generator fuses them as a batch, and what it gives is put together again. It does not give all phases quite the same
colours, which shows as a grid: so what they should have in common is taken from all of them.

N faces, S size of the model, B = factor x S.
Source: the pixel boost of FaceFusion, without the levelling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.align import affine_scale
from fusionray.faces.face import Matrix
from fusionray.runtime.config import PixelBoost
from fusionray.runtime.pixels import FloatArray

if TYPE_CHECKING:
    from fusionray.runtime.crop_fuser import FusedCrops

# Below this deviation, in pixels of the model, phases keep their differences: those are detail.
LEVEL_SIGMA = 1.0


def choose_factor(matrices: Sequence[Matrix], boost: PixelBoost) -> PixelBoost:
    """Choose the factor for the faces of a picture: the smallest up to `boost` at which the largest keeps its pixels.

    `matrices` map the picture to crops of the model's size. A larger factor would only cost time.
    """
    reduction = max((1 / affine_scale(matrix) for matrix in matrices), default=1.0)
    factors: tuple[PixelBoost, ...] = get_args(PixelBoost)
    return next(factor for factor in factors if factor == boost or factor + 0.5 >= reduction)


def split_phases(crops_NBB3: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Take crops apart into crops of every `factor`-th pixel: [N x factor x factor,S,S,3], those of a face together."""
    count, side = crops_NBB3.shape[0], crops_NBB3.shape[1] // factor
    phases = crops_NBB3.reshape(count, side, factor, side, factor, 3).transpose(0, 2, 4, 1, 3, 5)
    return np.ascontiguousarray(phases.reshape(-1, side, side, 3))


def repeat_sources(sources: FloatArray, factor: int) -> FloatArray:
    """Repeat the source of each face for its phases."""
    return np.repeat(sources, factor * factor, axis=0)


def join_phases(fused: FusedCrops, factor: int) -> FusedCrops:
    """Put fused phases together: crops uint8 [N,B,B,3] without a grid, and masks [N,B,B].

    Masks are the same for all phases, but for noise: their mean is enlarged, which gives a smooth edge.
    """
    if factor == 1:
        return fused
    side = fused.crops.shape[1]
    groups = fused.crops.reshape(-1, factor, factor, side, side, 3)
    masks = fused.masks.reshape(-1, factor * factor, side, side).mean(axis=1)
    large = (side * factor, side * factor)
    return replace(
        fused,
        crops=np.stack([interleave(level_phases(group.astype(np.float32))) for group in groups]),
        masks=np.stack([cv2.resize(mask, large, interpolation=cv2.INTER_LINEAR) for mask in masks]),
    )


def level_phases(phases: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give the phases of a face [F,F,S,S,3] the same colours where they are smooth; their details stay."""
    factor = phases.shape[0]
    whole = cv2.GaussianBlur(put_together(phases), (0, 0), LEVEL_SIGMA * factor)
    levelled = np.empty_like(phases)
    for row in range(factor):
        for column in range(factor):
            own = phases[row, column]
            smooth = cv2.GaussianBlur(own, (0, 0), LEVEL_SIGMA)
            levelled[row, column] = own + whole[row::factor, column::factor] - smooth
    return levelled


def put_together(phases: NDArray[np.float32]) -> NDArray[np.float32]:
    """Interleave the phases [F,F,S,S,3] of a face: [B,B,3]."""
    factor, _, side = phases.shape[:3]
    return np.ascontiguousarray(phases.transpose(2, 0, 3, 1, 4)).reshape(factor * side, factor * side, 3)


def interleave(phases: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Interleave the phases [F,F,S,S,3] of a face in 0..255: uint8 [B,B,3]."""
    return np.asarray(np.clip(np.rint(put_together(phases)), 0, 255), np.uint8)
