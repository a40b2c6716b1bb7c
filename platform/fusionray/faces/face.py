"""Detected faces, and the array types that the face modules share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
"""[H, W, 3] uint8, RGB, row 0 at the top."""
Points = NDArray[np.float32]
"""[5, 2] float32 (x, y) pixels, pixel centres at whole numbers: the eye at image left, the eye at image right, nose
tip, mouth corner at image left, mouth corner at image right."""
Matrix = NDArray[np.float64]
"""[2, 3] float64 affine map of pixel coordinates, to be applied to (x, y, 1)."""
Plane = NDArray[np.uint8]
"""[S, S] uint8."""
FloatMap = NDArray[np.float32]
"""[S, S] float32 in 0..1."""
TemplateAnchor = Literal["edge", "first_pixel"]
"""What stays in place when a template is enlarged to a crop: the edge of the crop, or the centre of its first pixel."""


@dataclass(frozen=True, eq=False, slots=True)
class Face:
    """One face in a picture.

    `box` is [4] float32: left, top, width, height in picture pixels; it may extend beyond the picture. `landmarks` are
    `Points` of the picture; `score` is the detector's confidence in 0..1. `outline` [K, 2] float32 surrounds the face's
    skin, in picture pixels, if the detector finds it.
    """

    box: NDArray[np.float32]
    landmarks: Points
    score: float
    outline: NDArray[np.float32] | None = None

    @property
    def area(self) -> float:
        """Return the area of the box in square pixels."""
        return float(self.box[2] * self.box[3])


class Detector(Protocol):
    """Finds faces. A detector can be pickled; it opens its model in the process that uses it."""

    def detect(self, image: Image, *, only_largest: bool = False) -> list[Face]:
        """Find the faces of a uint8 RGB HWC picture, best score first; an empty list if there is none.

        With `only_largest`, the largest face is enough, so a detector may leave out smaller ones.
        """
        ...


def largest_face(faces: list[Face]) -> Face:
    """Return the face with the largest box."""
    return max(faces, key=lambda face: face.area)


def group_by_face(boxes: NDArray[np.float32], scores: NDArray[np.float32], overlap: float) -> list[NDArray[np.intp]]:
    """Group candidates that show the same face; return the indices of each group, best score first, best group first.

    `boxes` [K, 4] are left, top, width, height, `scores` [K]. A candidate joins a better one if their intersection over
    union exceeds `overlap`. A candidate almost wholly inside or around a better one is dropped: tiles cut faces, and
    half a face is not a second face.
    """
    order = np.argsort(-scores, kind="stable")
    left_top, right_bottom = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    areas = np.maximum(boxes[:, 2] * boxes[:, 3], 1e-6)
    groups: list[NDArray[np.intp]] = []
    while order.size:
        best = order[0]
        sides = np.minimum(right_bottom[order], right_bottom[best]) - np.maximum(left_top[order], left_top[best])
        shared = np.prod(np.maximum(sides, 0.0), axis=1)
        same = shared / (areas[order] + areas[best] - shared) > overlap
        same[0] = True  # a box without any area overlaps nothing, not even itself
        groups.append(order[same])
        order = order[~same & (shared / np.minimum(areas[order], areas[best]) <= 0.8)]
    return groups


def keep_best(boxes: NDArray[np.float32], scores: NDArray[np.float32], overlap: float) -> list[int]:
    """Return the index of the best candidate of each face, best first (see `group_by_face`)."""
    return [int(group[0]) for group in group_by_face(boxes, scores, overlap)]
