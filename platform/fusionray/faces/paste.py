"""Paste a crop into the picture that it was cut from."""

from __future__ import annotations

import cv2
import numpy as np

from fusionray.faces.align import invert_affine, region_under, warp
from fusionray.faces.face import FloatMap, Image, Matrix


def paste_crop(image: Image, crop: Image, mask: FloatMap, matrix_23: Matrix) -> None:
    """Blend a crop [S, S, 3] through a mask [S, S] of 0 to 1 into a picture, in place.

    `matrix_23` is the map that made the crop (picture pixels -> crop pixels). Where the mask is 0, and outside the
    crop, the picture keeps its bytes. Only the region under the crop is computed.

    Raises:
        ValueError: crop and mask differ in size.
    """
    if crop.shape[:2] != mask.shape:
        raise ValueError(f"mask: its size {mask.shape} differs from the crop's {crop.shape[:2]}")
    left, top, right, bottom = region_under(matrix_23, len(crop), len(crop), image)
    if right <= left or bottom <= top:
        return
    to_region = invert_affine(matrix_23)
    to_region[:, 2] -= (left, top)
    size = (right - left, bottom - top)
    colour = np.asarray(warp(crop, to_region, *size, border=cv2.BORDER_REPLICATE, cubic=True))
    within = np.clip(mask, 0.0, 1.0).astype(np.float32, copy=False)
    weight = np.asarray(warp(within, to_region, *size, border=cv2.BORDER_CONSTANT))
    region = image[top:bottom, left:right]
    # A weight of 0 keeps the picture's byte exactly (tests/faces/test_paste.py).
    region[...] = cv2.blendLinear(colour, np.ascontiguousarray(region), weight, 1.0 - weight)
