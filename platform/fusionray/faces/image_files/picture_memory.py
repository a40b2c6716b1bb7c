"""The memory of decoded pictures, which is used again."""

from __future__ import annotations

import numpy as np

from fusionray.faces.face import Image
from fusionray.hardware.array_pool import ArrayPool

# Two pictures of 16 megapixels with their pyramids, such as a source and a target.
KEPT_BYTES = 128 * 2**20
# The C library itself keeps smaller blocks.
SMALL_BYTES = 2**20
_POOL = ArrayPool(KEPT_BYTES)


def allocate_picture(height: int, width: int) -> Image:
    """Return a uint8 picture [height, width, 3], not initialised."""
    shape = (height, width, 3)
    return _POOL.allocate(shape) if height * width * 3 >= SMALL_BYTES else np.empty(shape, np.uint8)
