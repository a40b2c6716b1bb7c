"""A picture at 1, 1/2, 1/4 ... of its size: a search of a large picture reads few of its pixels."""

from __future__ import annotations

import math

import cv2
import numpy as np

from fusionray.faces.face import Image
from fusionray.faces.image_files.picture_memory import allocate_picture


class Pyramid:
    """The levels of a uint8 RGB HWC picture, each made when it is first asked for."""

    def __init__(self, image: Image) -> None:
        self.levels = [image]

    def level(self, reduction: float) -> tuple[Image, int]:
        """Return the picture reduced by the largest power of two that is at most `reduction`, and that power.

        Pixel i of a level covers the pixels i * power to (i + 1) * power - 1 of the picture. An odd last row or column
        is left out.
        """
        depth = max(0, math.floor(math.log2(max(1.0, reduction))))
        while len(self.levels) <= depth and min(self.levels[-1].shape[:2]) > 1:
            above = self.levels[-1]
            height, width = above.shape[0] // 2, above.shape[1] // 2
            even = above[: 2 * height, : 2 * width]
            # Halving reads each pixel once, ten times faster than OpenCV's area reduction by another factor.
            halved = cv2.resize(even, (width, height), allocate_picture(height, width), interpolation=cv2.INTER_AREA)
            self.levels.append(np.asarray(halved, np.uint8))
        depth = min(depth, len(self.levels) - 1)
        return self.levels[depth], 2**depth
