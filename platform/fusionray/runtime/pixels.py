"""Convert crops between pixels (uint8 NHWC RGB) and tensors (float32 NCHW in the value range of a model)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.description import TensorDescription, per_channel

FloatArray = NDArray[np.float32]


def normalize_crops(crops_NHWC: NDArray[np.uint8], to: TensorDescription) -> FloatArray:
    """Convert uint8 NHWC RGB crops to a float32 NCHW batch in the described range and channel order."""
    black_C11, span_C11 = value_range(to)
    batch = reorder_channels(crops_NHWC, to).transpose(0, 3, 1, 2).astype(np.float32, order="C")
    batch *= span_C11 / np.float32(255.0)
    batch += black_C11
    return batch


def denormalize_crops(batch_NCHW: FloatArray, described: TensorDescription) -> NDArray[np.uint8]:
    """Convert a float32 NCHW batch in the described range to uint8 NHWC RGB, rounded; NaN and -inf become 0."""
    black_C11, span_C11 = value_range(described)
    scaled = (batch_NCHW - black_C11) * (np.float32(255.0) / span_C11)
    finite = np.nan_to_num(scaled, nan=0.0, posinf=255.0, neginf=0.0)
    pixels = np.rint(np.clip(finite, 0.0, 255.0)).astype(np.uint8).transpose(0, 2, 3, 1)
    return reorder_channels(pixels, described)


def denormalize_masks(masks_N1HW: FloatArray, described: TensorDescription) -> FloatArray:
    """Convert masks in the described range to float32 NHW in 0..1; infinite values become 0 or 1, NaN becomes 0."""
    black_C11, span_C11 = value_range(described)
    scaled = (masks_N1HW - black_C11[:1]) / span_C11[:1]
    masks: FloatArray = np.clip(np.nan_to_num(scaled[:, 0]), 0.0, 1.0).astype(np.float32, copy=False)
    return masks


def value_range(described: TensorDescription) -> tuple[FloatArray, FloatArray]:
    """Return the value of black, and white minus black, float32 [3,1,1] each, in the channel order of the model."""
    black = np.array(per_channel(described.minimum), np.float64).reshape(3, 1, 1)
    white = np.array(per_channel(described.maximum), np.float64).reshape(3, 1, 1)
    return black.astype(np.float32), (white - black).astype(np.float32)


def reorder_channels(pixels_NHWC: NDArray[np.uint8], described: TensorDescription) -> NDArray[np.uint8]:
    """Convert RGB to the channel order of a model, or back."""
    return pixels_NHWC[..., ::-1] if described.order == "bgr" else pixels_NHWC
