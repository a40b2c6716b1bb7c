"""Show a whole frame upright and small, for the search of faces."""

from __future__ import annotations

from fractions import Fraction

import cv2
import numpy as np
from av import VideoFrame

from fusionray.faces.face import Image, Matrix
from fusionray.faces.image_files.decode import turn_upright
from fusionray.video.frames.colour import map_of
from fusionray.video.frames.orientation import upright_to_stored
from fusionray.video.frames.pixel_layout import view_planes


def read_upright(
    frame: VideoFrame, longest_side: int, *, orientation: int = 1, sample_aspect: Fraction = Fraction(1)
) -> Image:
    """Read a whole frame as uint8 sRGB, upright, with square pixels and a longest side of at most `longest_side`.

    Planes are reduced before colours are converted, so this costs little more than reading them once.

    Raises:
        VideoRejected: with the reason "pixel_format" or "colour_matrix".
    """
    colours = map_of(frame)
    size = _fit(frame.width, frame.height, longest_side, sample_aspect)
    planes = [_resize(plane, size) for plane in view_planes(frame, colours.layout)]
    if len(planes) == 1:
        planes += [np.full_like(planes[0], 1 << (colours.layout.bits - 1))] * 2
    return turn_upright(colours.show(np.asarray(cv2.merge(planes))), orientation)


def map_to_stored(
    width: int, height: int, longest_side: int, *, orientation: int = 1, sample_aspect: Fraction = Fraction(1)
) -> Matrix:
    """Return the map [2, 3] from the pixels of `read_upright` to stored ones of a frame of this size (centres at whole
    numbers): it turns, mirrors, scales, and undoes the sample aspect.
    """
    size = _fit(width, height, longest_side, sample_aspect)
    across, down = width / size[0], height / size[1]
    to_full = np.array([[across, 0, across / 2 - 0.5], [0, down, down / 2 - 0.5]])
    turned = np.vstack([upright_to_stored(orientation, *size), [0, 0, 1]])
    return np.asarray(to_full @ turned)


def _fit(width: int, height: int, longest_side: int, sample_aspect: Fraction) -> tuple[int, int]:
    shown_width = width * float(sample_aspect)
    scale = min(1.0, longest_side / max(shown_width, height))
    return max(round(shown_width * scale), 1), max(round(height * scale), 1)


def _resize(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    smaller = plane.shape[0] >= size[1] and plane.shape[1] >= size[0]
    return np.asarray(cv2.resize(plane, size, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR))
