"""The soft mask through which a crop is pasted into its picture."""

from __future__ import annotations

import cv2
import numpy as np

from fusionray.faces.face import FloatMap


def soft_box_mask(size: int, margin: float = 0.0, blur: float = 0.15) -> FloatMap:
    """Make a [size, size] float32 mask: 1 in the middle, falling smoothly to exactly 0 at the edge of the crop.

    `margin` and `blur` are fractions of the size: the mask is 0 within `margin` of the edge, and rises to 1 over a band
    as wide as `blur`.

    Raises:
        ValueError: margin and band leave no middle.
    """
    if margin < 0 or blur < 0 or margin + blur >= 0.5:
        raise ValueError(f"margin, blur: {margin} + {blur} must stay under 0.5, or nothing of the crop is pasted")
    inner = max(1, round(size * margin))
    band = round(size * blur)
    box = np.zeros((size, size), np.float32)
    # The box ends in the middle of the band: the kernel extends half a band, so the rim stays zero.
    start = inner + band // 2
    box[start : size - start, start : size - start] = 1.0
    if band >= 2:
        kernel = 2 * (band // 2) + 1
        blurred = cv2.GaussianBlur(box, (kernel, kernel), kernel / 5.0, borderType=cv2.BORDER_CONSTANT)
        box = np.asarray(blurred, np.float32)
    return np.clip(box, 0.0, 1.0)
