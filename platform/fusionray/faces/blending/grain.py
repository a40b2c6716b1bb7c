"""Sharpness and grain of a fused face, which on a large photograph would be a soft, clean spot.

A crop gets the sharpness of the crop that it replaces, as far as its own pixels allow; finer than those is only the
target's own grain: the noise, pores and compression of its pixels, without their edges, which are another person's.

Shape suffixes: S side of a crop, H rows, W columns.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.align import affine_scale, compose, resize_map, warp
from fusionray.faces.face import FloatMap, Image, Matrix

# What is sharpened in a crop are details of about two pixels; at most doubled, since noise doubles, too.
DETAIL_PIXELS, LARGEST_GAIN = 1.6, 2.0
# Of the details of a crop, the strongest are edges, of which two people have different ones.
EDGE_SHARE = 0.1
# From this enlargement on a crop lacks grain.
LEAST_ENLARGEMENT = 1.1
# Grain beyond so many of its own deviations is an edge; below this deviation, in levels, there is no grain.
EDGE_DEVIATIONS, LEAST_GRAIN = 3.0, 0.3
# Where a mask has this share of its largest weight, a face counts as shown.
SHOWN_SHARE = 0.9
# Grain is measured on every so many pixels, and added to so many rows at once, which stay in the cache of a core.
MEASURED_STEP, ROWS = 3, 32
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)


def match_sharpness(fused_SS3: Image, target_SS3: Image, mask_SS: FloatMap) -> Image:
    """Return a fused crop with the sharpness of the target's crop where it will be shown; never a softer one."""
    shown_SS = mask_SS > 0.5
    if not shown_SS.any():
        return fused_SS3
    fused = fused_SS3.astype(np.float32)
    details = fused - cv2.GaussianBlur(fused, (0, 0), DETAIL_PIXELS)
    target = target_SS3.astype(np.float32) @ LUMINANCE
    wanted = measure_details((target - cv2.GaussianBlur(target, (0, 0), DETAIL_PIXELS))[shown_SS])
    gain = min(LARGEST_GAIN, wanted / max(1e-3, measure_details((details @ LUMINANCE)[shown_SS])))
    if gain <= 1:
        return fused_SS3
    return np.asarray(np.clip(np.rint(fused + (gain - 1) * details), 0, 255), np.uint8)


def measure_details(values: NDArray[np.float32]) -> float:
    """Return the root mean square of details, edges cut off."""
    bound = float(np.quantile(np.abs(values), 1 - EDGE_SHARE))
    return float(np.sqrt(np.mean(np.square(np.clip(values, -bound, bound)))))


def add_grain(pasted_HW3: Image, before_HW3: Image, mask_SS: FloatMap, matrix_23: Matrix) -> None:
    """Give a pasted face the grain that the picture had there, in place; nothing if the crop was not enlarged.

    `pasted_HW3` and `before_HW3`: a region of the picture after and before; `matrix_23` maps it to the crop, which was
    shown by `mask_SS`.
    """
    enlargement = 1 / affine_scale(matrix_23)
    height, width = pasted_HW3.shape[:2]
    if enlargement < LEAST_ENLARGEMENT or min(height, width) < 2 * enlargement:
        return
    coarse = show_coarse(before_HW3, enlargement)
    weight = enlarge_mask(mask_SS, matrix_23, width, height)
    deviation = measure_grain(before_HW3, coarse, weight)
    if deviation < LEAST_GRAIN:
        return
    to_edge = LUMINANCE[None] / (EDGE_DEVIATIONS * deviation)
    for start in range(0, height, ROWS):
        rows = slice(start, start + ROWS)
        if not weight[rows].any():
            continue
        grain = cv2.subtract(before_HW3[rows], coarse[rows], dtype=cv2.CV_32F)
        share = cv2.exp(-np.square(cv2.transform(grain, to_edge))) * weight[rows]
        added = cv2.multiply(grain, cv2.cvtColor(share, cv2.COLOR_GRAY2RGB))
        pasted_HW3[rows] = cv2.add(pasted_HW3[rows], added, dtype=cv2.CV_8U)


def show_coarse(picture_HW3: Image, enlargement: float) -> Image:
    """Return what an enlarged crop can show of a picture: reduced to the crop's pixels, and enlarged again."""
    height, width = picture_HW3.shape[:2]
    reduced = round(width / enlargement), round(height / enlargement)
    to_reduced = resize_map((width, height), reduced)
    # It averages by halves: OpenCV's area reduction by any other factor is slow (faces/detectors/pyramid.py).
    small = warp(picture_HW3, to_reduced, *reduced, border=cv2.BORDER_REPLICATE)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def enlarge_mask(mask_SS: FloatMap, matrix_23: Matrix, width: int, height: int) -> FloatMap:
    """Return the mask of a crop in the pixels of a region; `matrix_23` maps the region to the crop."""
    # A mask is smooth: it is warped to twice its own resolution, and enlarged from there, which is cheap.
    factor = max(1, int(1 / affine_scale(matrix_23) / 2))
    reduced = -(-width // factor), -(-height // factor)
    to_crop = compose(matrix_23, resize_map(reduced, (width, height)))
    small = cv2.warpAffine(mask_SS, to_crop, reduced, flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderValue=0)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR), np.float32)


def measure_grain(picture_HW3: Image, coarse_HW3: Image, weight_HW: FloatMap) -> float:
    """Return the deviation of the grain of a picture in levels, where a face is shown most; edges hardly count."""
    some = (slice(None, None, MEASURED_STEP), slice(None, None, MEASURED_STEP))
    # Of the largest weight: a face may be blended in by a half.
    shown = weight_HW[some] > SHOWN_SHARE * weight_HW[some].max()
    if not shown.any():
        return 0.0
    grain = (picture_HW3[some][shown].astype(np.float32) - coarse_HW3[some][shown]) @ LUMINANCE
    # The median of absolute deviations, as the standard deviation of a normal distribution.
    return float(np.median(np.abs(grain))) / 0.6745
