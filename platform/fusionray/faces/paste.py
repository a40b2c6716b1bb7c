"""Paste a crop into the picture that it was cut from."""

from __future__ import annotations

import cv2
import numpy as np

from fusionray.faces.align import invert_affine, transform_points, warp
from fusionray.faces.face import FloatMap, Image, Matrix


def affected_region(matrix_23: Matrix, size: int, width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom (exclusive) of the picture pixels under a crop of `size`; may be empty."""
    edge = size - 0.5
    corners = np.array([[-0.5, -0.5], [edge, -0.5], [edge, edge], [-0.5, edge]])
    in_picture = transform_points(corners, invert_affine(matrix_23))
    low, high = np.floor(in_picture.min(0)), np.ceil(in_picture.max(0)) + 1
    left, top = np.clip(low, 0, [width, height]).astype(int)
    right, bottom = np.clip(high, 0, [width, height]).astype(int)
    return int(left), int(top), int(right), int(bottom)


def paste_crop(image: Image, crop: Image, mask: FloatMap, matrix_23: Matrix) -> Image:
    """Blend a crop [S, S, 3] through a mask [S, S] into a copy of its picture.

    `matrix_23` is the map that made the crop (picture pixels -> crop pixels). Where the mask is 0, and outside the
    crop, the picture keeps its bytes. Only the region under the crop is computed.

    Raises:
        ValueError: crop and mask differ in size.
    """
    if crop.shape[:2] != mask.shape:
        raise ValueError(f"mask: its size {mask.shape} differs from the crop's {crop.shape[:2]}")
    height, width = image.shape[:2]
    left, top, right, bottom = affected_region(matrix_23, len(crop), width, height)
    result = image.copy()
    if right <= left or bottom <= top:
        return result
    to_region = invert_affine(matrix_23)
    to_region[:, 2] -= (left, top)
    size = (right - left, bottom - top)
    colour = np.asarray(warp(crop, to_region, *size, border=cv2.BORDER_REPLICATE, cubic=True))
    weight = np.clip(warp(mask, to_region, *size, border=cv2.BORDER_CONSTANT), 0.0, 1.0).astype(np.float32, copy=False)
    region = result[top:bottom, left:right]
    # A weight of 0 keeps the picture's byte exactly (tests/faces/test_paste.py).
    region[...] = cv2.blendLinear(colour, np.ascontiguousarray(region), weight, 1.0 - weight)
    return result
