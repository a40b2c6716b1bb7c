"""Crops between the world of pictures (uint8 NHWC, RGB) and that of models (float32 NCHW in described levels)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.description import TensorDescription, spread

FloatArray = NDArray[np.float32]


def normalize_crops(crops_NHWC: NDArray[np.uint8], to: TensorDescription) -> FloatArray:
    """Turn uint8 NHWC RGB crops into a batch NCHW float32 as described."""
    black_C11, span_C11 = levels_of(to)
    batch = in_order(crops_NHWC, to).transpose(0, 3, 1, 2).astype(np.float32, order="C")
    batch *= span_C11 / np.float32(255.0)
    batch += black_C11
    return batch


def denormalize_crops(batch_NCHW: FloatArray, described: TensorDescription) -> NDArray[np.uint8]:
    """Turn a batch as described into uint8 NHWC RGB, rounded; numbers that are not finite become the minimum."""
    black_C11, span_C11 = levels_of(described)
    scaled = (batch_NCHW - black_C11) * (np.float32(255.0) / span_C11)
    finite = np.nan_to_num(scaled, nan=0.0, posinf=255.0, neginf=0.0)
    pixels = np.rint(np.clip(finite, 0.0, 255.0)).astype(np.uint8).transpose(0, 2, 3, 1)
    return in_order(pixels, described)


def denormalize_masks(masks_N1HW: FloatArray, described: TensorDescription) -> FloatArray:
    """Turn masks as described into NHW in 0..1; numbers that are not finite become 0 or 1."""
    black_C11, span_C11 = levels_of(described)
    scaled = (masks_N1HW - black_C11[:1]) / span_C11[:1]
    masks: FloatArray = np.clip(np.nan_to_num(scaled[:, 0]), 0.0, 1.0).astype(np.float32, copy=False)
    return masks


def levels_of(described: TensorDescription) -> tuple[FloatArray, FloatArray]:
    """Give the value of black and how far white is from it, for each channel as the model orders them, [3,1,1]."""
    black = np.array(spread(described.minimum), np.float64).reshape(3, 1, 1)
    white = np.array(spread(described.maximum), np.float64).reshape(3, 1, 1)
    return black.astype(np.float32), (white - black).astype(np.float32)


def in_order(pixels_NHWC: NDArray[np.uint8], described: TensorDescription) -> NDArray[np.uint8]:
    """Turn RGB into the order of the channels that a model has, or back."""
    return pixels_NHWC[..., ::-1] if described.order == "bgr" else pixels_NHWC
