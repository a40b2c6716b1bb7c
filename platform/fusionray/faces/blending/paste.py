"""Paste a crop into the picture that it was cut from."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.align import MAX_ENLARGEMENT, affine_scale, enlarge, invert_affine, region_under, warp
from fusionray.faces.face import FloatMap, Image, Matrix

# Pixels of weight 0 around a patch, so that its weight ends within it.
_RIM = 1
# Rows that are blended at once: what they take stays in the cache of a core.
_BLENDED_ROWS = 32


def paste_crop(image: Image, crop: Image, mask: FloatMap, matrix_23: Matrix) -> None:
    """Blend a crop [S, S, 3] through a mask [S, S] of 0 to 1 into a picture, in place.

    `matrix_23` is the map that made the crop (picture pixels -> crop pixels). The mask has 256 levels. Where it is 0,
    and outside the crop, the picture keeps its bytes; elsewhere, a byte is at most 1 off the exact blend. Only the
    region under the part of the crop that the mask shows is computed.

    Raises:
        ValueError: crop and mask differ in size.
    """
    if crop.shape[:2] != mask.shape:
        raise ValueError(f"mask: its size {mask.shape} differs from the crop's {crop.shape[:2]}")
    patch, left, top = _cut_shown(crop, mask)
    if not patch.size:
        return
    to_patch = matrix_23.copy()
    to_patch[:, 2] -= (left, top)
    height, width = patch.shape[:2]
    left, top, right, bottom = region_under(to_patch, width, height, image)
    if right <= left or bottom <= top:
        return
    to_region = invert_affine(to_patch)
    to_region[:, 2] -= (left, top)
    _blend(image[top:bottom, left:right], _warp_patch(patch, to_region, right - left, bottom - top))


def _cut_shown(crop: Image, mask: FloatMap) -> tuple[NDArray[np.uint8], int, int]:
    """Return what the mask shows of a crop as RGBA, with a rim of weight 0, and its left and top in the crop.

    Nothing is shown where the mask rounds to 0: then the patch is empty.
    """
    weight = np.rint(np.clip(mask, 0.0, 1.0) * 255.0).astype(np.uint8)
    rows, columns = np.flatnonzero(weight.any(1)), np.flatnonzero(weight.any(0))
    if not len(rows):
        return np.empty((0, 0, 4), np.uint8), 0, 0
    colour = cv2.copyMakeBorder(crop, *(_RIM,) * 4, cv2.BORDER_REPLICATE)
    alpha = cv2.copyMakeBorder(weight, *(_RIM,) * 4, cv2.BORDER_CONSTANT, value=0)
    top, left = int(rows[0]), int(columns[0])
    patch = np.dstack([colour, alpha])[top : rows[-1] + 1 + 2 * _RIM, left : columns[-1] + 1 + 2 * _RIM]
    return np.ascontiguousarray(patch), left - _RIM, top - _RIM


def _warp_patch(patch: NDArray[np.uint8], to_region: Matrix, width: int, height: int) -> NDArray[np.generic]:
    """Warp an RGBA patch. Colours follow a cubic curve; weights do not, because they would overshoot."""
    border, scale = cv2.BORDER_REPLICATE, affine_scale(to_region)
    colour, weight = patch[..., :3], patch[..., 3]
    if scale < 2.0:
        warped = warp(colour, to_region, width, height, border=border, cubic=True)
        return np.dstack([warped, warp(weight, to_region, width, height, border=border)])
    # A warp of four channels takes a third of the time of three.
    factor = min(int(scale), MAX_ENLARGEMENT)
    large_colour, _ = enlarge(colour, to_region, factor)
    large_weight, to_region = enlarge(weight, to_region, factor, cv2.INTER_LINEAR)
    return warp(np.dstack([large_colour, large_weight]), to_region, width, height, border=border)


def _blend(region: Image, patch: NDArray[np.generic]) -> None:
    """Blend an RGBA patch [H, W, 4] into a region [H, W, 3] of a picture, in place."""
    for start in range(0, len(region), _BLENDED_ROWS):
        below = region[start : start + _BLENDED_ROWS]
        above = np.asarray(patch[start : start + _BLENDED_ROWS])
        weight = cv2.cvtColor(cv2.extractChannel(above, 3), cv2.COLOR_GRAY2RGB)
        # The product with 255 / 255 and the sum with 0 are exact, so a weight of 0 keeps the byte of the picture.
        shown = cv2.multiply(cv2.cvtColor(above, cv2.COLOR_RGBA2RGB), weight, scale=1 / 255)
        kept = cv2.multiply(np.ascontiguousarray(below), cv2.bitwise_not(weight), scale=1 / 255)
        below[...] = cv2.add(shown, kept)
