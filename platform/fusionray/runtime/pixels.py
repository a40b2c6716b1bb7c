"""Crops between the world of pictures (uint8 NHWC) and that of models (float32 NCHW in a described range)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusionray.export.bundle import TensorDescription

FloatArray = NDArray[np.float32]


def normalize_crops(crops_NHWC: NDArray[np.uint8], to: TensorDescription) -> FloatArray:
    """Turn uint8 NHWC crops into a batch NCHW float32 in the described range."""
    batch = crops_NHWC.transpose(0, 3, 1, 2).astype(np.float32, order="C")
    batch *= np.float32((to.maximum - to.minimum) / 255.0)
    batch += np.float32(to.minimum)
    return batch


def denormalize_crops(batch_NCHW: FloatArray, described: TensorDescription) -> NDArray[np.uint8]:
    """Turn a batch in the described range into uint8 NHWC, rounded; numbers that are not finite become the minimum."""
    scaled = (batch_NCHW - described.minimum) * (255.0 / (described.maximum - described.minimum))
    finite = np.nan_to_num(scaled, nan=0.0, posinf=255.0, neginf=0.0)
    pixels: NDArray[np.uint8] = np.rint(np.clip(finite, 0.0, 255.0)).astype(np.uint8).transpose(0, 2, 3, 1)
    return pixels
