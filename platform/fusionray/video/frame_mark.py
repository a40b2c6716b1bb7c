"""The visible mark on the frames of a video, upright as a player shows them."""

from __future__ import annotations

import cv2
import numpy as np
from av import VideoFrame

from fusionray.faces.image_files.decode import turn_upright
from fusionray.safety.mark import Mark
from fusionray.video.files.description import VideoDescription
from fusionray.video.frames.planes import blend_region

# EXIF orientations that undo others; the rest undo themselves.
_UNDONE_BY = {6: 8, 8: 6}


class FrameMark:
    """A mark, turned and stretched once as the frames of a video are stored."""

    def __init__(self, mark: Mark, description: VideoDescription) -> None:
        shown = round(description.width * float(description.sample_aspect)), description.height
        width, height = shown[::-1] if description.orientation >= 5 else shown
        placed = mark.place(height, width)
        self.is_drawn = placed is not None
        if placed is None:
            return
        left, top, plate = placed
        whole = np.zeros((height, width, 4), np.uint8)
        whole[top : top + plate.shape[0], left : left + plate.shape[1]] = np.clip(np.rint(plate), 0, 255)
        stored = np.ascontiguousarray(
            turn_upright(whole, _UNDONE_BY.get(description.orientation, description.orientation))
        )
        stored = cv2.resize(stored, (description.width, description.height), interpolation=cv2.INTER_AREA)
        rows, columns = np.flatnonzero(stored[..., 3].any(1)), np.flatnonzero(stored[..., 3].any(0))
        part = stored[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        self.box = int(columns[0]), int(rows[0]), part.shape[1], part.shape[0]
        self.colour = np.ascontiguousarray(part[..., :3])
        self.alpha = np.ascontiguousarray(part[..., 3], np.float32) / np.float32(255)

    def draw(self, frame: VideoFrame) -> None:
        """Draw the mark on a frame, in place; a frame that is too small for it stays as it is."""
        if self.is_drawn:
            blend_region(frame, self.box, self.colour, self.alpha)
