"""Draw pictures of several people of known places and sizes, to measure how faces are found."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.data.synthetic.parameters.sampling import sample_attributes, sample_identities
from fusionray.data.synthetic.renderer import project_landmarks, render
from fusionray.faces.face import Image

# A face is about this many times as wide as the distance of its eyes.
FACE_WIDTH_IN_EYES = 2.2
# A person is drawn at this size at least, and then made smaller: the renderer's finest lines need it.
_DRAWN_PIXELS = 128
_SMALLEST_PERSON = 16
_ATTEMPTS = 60


@dataclass(frozen=True, eq=False)
class Crowd:
    """A picture uint8 RGB [H,W,3], the five points [N,5,2] of each face in its pixels, and the widths [N] of faces."""

    image: Image
    points: NDArray[np.float32]
    widths: NDArray[np.float32]


def draw_crowd(
    seed: int, width: int, height: int, widths: tuple[float, float], *, count: int = 10, largest: float | None = None
) -> Crowd:
    """Draw up to `count` people who do not overlap, on a background of coloured noise of several scales.

    The widths of the faces are drawn evenly on a log scale from the range `widths`, in pixels; the largest is `largest`
    if that is given. A person for whom no room is left is left out.
    """
    random = np.random.default_rng(seed)
    image = draw_background(random, width, height)
    low, high = np.log(widths)
    wanted = np.sort(np.exp(random.uniform(low, high, count)))[::-1]
    if largest is not None:
        wanted = np.array([largest, *wanted[wanted < largest]])
    identities, attributes = sample_identities(len(wanted), seed), sample_attributes(len(wanted), seed + 1)
    points, taken = [], np.empty((0, 3), np.int64)
    for number, face_width in enumerate(wanted):
        person = slice(number, number + 1)
        unit_points = project_landmarks(identities[person], attributes[person])[0].numpy()
        eyes = float(np.linalg.norm(unit_points[1] - unit_points[0]))
        side = min(round(face_width / (FACE_WIDTH_IN_EYES * eyes)), width, height)
        corner = find_room(random, taken, side, width, height)
        if corner is None or side < _SMALLEST_PERSON:
            continue
        drawn = render(identities[person], attributes[person], max(side, _DRAWN_PIXELS))[0]
        picture = np.ascontiguousarray((drawn * 255).round().byte().permute(1, 2, 0).numpy())
        left, top = corner
        image[top : top + side, left : left + side] = cv2.resize(picture, (side, side), interpolation=cv2.INTER_AREA)
        taken = np.concatenate([taken, [[left, top, side]]])
        points.append(unit_points * side - 0.5 + corner)
    found = np.asarray(points, np.float32).reshape(-1, 5, 2)
    return Crowd(image, found, FACE_WIDTH_IN_EYES * np.linalg.norm(found[:, 1] - found[:, 0], axis=1))


def draw_background(random: np.random.Generator, width: int, height: int) -> Image:
    """Draw coloured noise of several scales, so that no part of the picture is empty."""
    drawn = np.zeros((height, width, 3), np.float32)
    for cells in (4, 12, 40, 150):
        rows, columns = (max(2, length * cells // max(width, height)) for length in (height, width))
        noise = random.random((rows, columns, 3)).astype(np.float32)
        drawn += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC) / (1 + math.log2(cells) / 3)
    drawn -= drawn.min()
    return np.asarray(drawn / drawn.max() * 200 + 20, np.uint8)


def find_room(
    random: np.random.Generator, taken: NDArray[np.int64], side: int, width: int, height: int
) -> tuple[int, int] | None:
    """Find left and top of a free square among the taken ones, [K,3] of left, top, side; None if attempts fail."""
    for _ in range(_ATTEMPTS):
        left, top = int(random.integers(0, width - side + 1)), int(random.integers(0, height - side + 1))
        apart = (left + side <= taken[:, 0]) | (taken[:, 0] + taken[:, 2] <= left)
        apart |= (top + side <= taken[:, 1]) | (taken[:, 1] + taken[:, 2] <= top)
        if apart.all():
            return left, top
    return None
