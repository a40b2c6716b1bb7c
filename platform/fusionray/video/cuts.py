"""Cuts of a video: frames that begin a new shot."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import Image

# Side of the summaries that are compared to find cuts, and how different two of them are across a cut: the mean
# difference of their pixels, of 255. Camera flashes and pans stay below.
CUT_SIDE, CUT_DIFFERENCE = 32, 36.0
# Side of a picture that is large enough for a summary.
SEEN_SIDE = 8 * CUT_SIDE


def summarise(image: Image) -> NDArray[np.int16]:
    """Reduce a frame, uint8 RGB HWC, to the grey picture [32,32] by which cuts are found."""
    # Some of the rows and columns are enough for a mean; all those of a large frame would cost milliseconds.
    step = max(1, min(image.shape[:2]) // SEEN_SIDE)
    part = np.ascontiguousarray(image[::step, ::step])
    small = cv2.resize(part, (CUT_SIDE, CUT_SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.int16)


def is_cut(before: NDArray[np.int16], after: NDArray[np.int16]) -> bool:
    """Tell whether a frame begins a new shot, from the summary of the frame before it and its own."""
    return float(np.abs(after - before).mean()) > CUT_DIFFERENCE
