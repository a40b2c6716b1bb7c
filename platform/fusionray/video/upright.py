"""Videos of phones are stored as the sensor lies, with the rotation by which players turn them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fusionray.faces.face import Image
from fusionray.video.tracks import Track

QUARTER = 90


def turn_upright(image: Image, rotation: int) -> Image:
    """Turn a picture by a rotation in degrees counter-clockwise, to the nearest quarter."""
    return np.ascontiguousarray(np.rot90(image, round(rotation / QUARTER) % 4))


def turn_points(track: Track, rotation: int, size: tuple[int, int]) -> Track:
    """Return a track of upright pictures in the pixels of the stored ones, which are `size` (width, height).

    Boxes stay upright; their sides are exchanged at an odd number of quarters.
    """
    width, height = size
    landmarks, boxes = track.landmarks, track.boxes
    for quarter in range(round(rotation / QUARTER) % 4, 0, -1):
        # The width of the picture before this quarter was made: a pixel (x, y) went to (y, width - 1 - x).
        across = width if quarter % 2 else height
        x, y = landmarks[..., 0], landmarks[..., 1]
        landmarks = np.stack([across - 1 - y, x], axis=-1)
        left, top, wide, high = boxes.T
        boxes = np.stack([across - 1 - top - high, left, high, wide], axis=1)
    return replace(track, landmarks=landmarks.astype(np.float32), boxes=boxes.astype(np.float32))
