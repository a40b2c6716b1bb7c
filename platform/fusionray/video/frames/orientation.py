"""The display matrix: how a player turns and mirrors stored pictures, and where upright pixels are stored."""

from __future__ import annotations

import math

import numpy as np

from fusionray.faces.face import Matrix

DisplayMatrix = tuple[int, int, int, int, int, int, int, int, int]
"""a, b, u, c, d, v, x, y, w: stored (p, q) is shown at (a p + c q + x, b p + d q + y); 16.16 fixed-point numbers."""
_ONE = 1 << 16


def orientation_of(matrix: DisplayMatrix | None) -> int:
    """Return the EXIF orientation (1 to 8) nearest to a display matrix; 1 without one.

    Players turn by any angle; pictures are searched for faces in the nearest right one.
    """
    if matrix is None:
        return 1
    a, b, _, c, d = matrix[:5]
    swapped = abs(b) > abs(a)
    mirrors = ((c if swapped else a) < 0, (b if swapped else d) < 0)
    without = {(False, False): 1, (True, False): 2, (True, True): 3, (False, True): 4}
    with_axes_swapped = {(False, False): 5, (True, False): 6, (True, True): 7, (False, True): 8}
    return (with_axes_swapped if swapped else without)[mirrors]


def matrix_of_rotation(degrees: int) -> DisplayMatrix:
    """Return the display matrix of a rotation counter-clockwise by degrees, as FFmpeg states them."""
    angle = math.radians(-degrees)
    cosine, sine = (round(math.cos(angle) * _ONE), round(math.sin(angle) * _ONE))
    return cosine, sine, 0, -sine, cosine, 0, 0, 0, 1 << 30


def upright_to_stored(orientation: int, width: int, height: int) -> Matrix:
    """Return the map [2, 3] from upright pixels to stored ones; pixel centres lie at whole numbers.

    `width` and `height` are the stored picture's; `orientation` is 1 to 8, as for `decode.turn_upright`.
    """
    swapped = orientation >= 5
    last_x, last_y = (height - 1, width - 1) if swapped else (width - 1, height - 1)
    mirror = np.eye(3)
    if orientation in {2, 3, 6, 7}:
        mirror[0] = (-1, 0, last_x)
    if orientation in {3, 4, 7, 8}:
        mirror[1] = (0, -1, last_y)
    return mirror[[1, 0]] if swapped else mirror[:2]
