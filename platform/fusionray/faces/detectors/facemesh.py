"""Face mesh: 468 points of one face, reduced to the five points of alignment and an outline.

Source: Kartynnik et al., Real-time Facial Surface Geometry from Monocular Video on Mobile GPUs, 2019; point numbers
as in MediaPipe's canonical face model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.align import invert_affine, transform_points, warp
from fusionray.faces.detectors.pyramid import Pyramid
from fusionray.faces.detectors.tflite import TfliteModel
from fusionray.faces.face import Matrix, Points

MESH_FILE = "face_landmark/face_landmark.tflite"
INPUT_SIZE = 192
MARGIN = 1.5
"""The model was trained on squares 1.5 times as wide as the face (MediaPipe, face_landmark module)."""
_CONFIDENT = 0.9
_MAX_PASSES = 3
# Contours of the eye openings: the eye at image left, the eye at image right.
_LEFT_EYE = (33, 7, 163, 144, 145, 153, 154, 155, 133, 173, 157, 158, 159, 160, 161, 246)
_RIGHT_EYE = (263, 249, 390, 373, 374, 380, 381, 382, 362, 398, 384, 385, 386, 387, 388, 466)
# The outline of the face, clockwise from the middle of the forehead.
# fmt: off
_OUTLINE = (
    10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377,
    152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109,
)
# fmt: on
_NOSE_TIP, _LEFT_MOUTH_CORNER, _RIGHT_MOUTH_CORNER = 1, 61, 291


@dataclass(frozen=True, eq=False, slots=True)
class RotatedSquare:
    """A rotated square in a picture: centre (x, y) and side in pixels; `roll` in radians, clockwise on the screen."""

    centre: NDArray[np.float64]
    side: float
    roll: float


class LocatedFace(NamedTuple):
    """A located face, in picture pixels: the five `points`, and the `outline` [36, 2] of the skin.

    `confidence` in 0..1 is the probability of a face.
    """

    points: Points
    outline: NDArray[np.float32]
    confidence: float


class FaceMesh:
    """The 468-point model, run on an upright crop around a face that a detector found."""

    def __init__(self, path: Path) -> None:
        self._model = TfliteModel(path)

    def locate(self, pyramid: Pyramid, square: RotatedSquare) -> LocatedFace:
        """Locate the face in a square of the picture.

        The confidence is low if the face is not framed as in the model's training. Then the model runs again, on the
        square around its own points.
        """
        mesh, confidence = self._run(pyramid, square)
        for _ in range(_MAX_PASSES - 1):
            if confidence >= _CONFIDENT:
                break
            again_mesh, again_confidence = self._run(pyramid, square_around(mesh, square.roll))
            if again_confidence <= confidence:
                break
            mesh, confidence = again_mesh, again_confidence
        return LocatedFace(five_points(mesh), mesh[list(_OUTLINE)], confidence)

    def _run(self, pyramid: Pyramid, square: RotatedSquare) -> tuple[NDArray[np.float32], float]:
        """Return the mesh [468, 2] in picture pixels, and the confidence."""
        matrix = _crop_matrix(square)
        image, factor = pyramid.level(square.side / INPUT_SIZE)
        from_level = np.concatenate(
            [matrix[:, :2] * factor, (matrix @ [(factor - 1) / 2, (factor - 1) / 2, 1.0])[:, None]], axis=1
        )
        crop = warp(image, from_level, INPUT_SIZE, INPUT_SIZE, border=cv2.BORDER_REPLICATE)
        outputs = self._model.run((crop.astype(np.float32) / 255.0)[None])
        mesh = next(output for output in outputs if output.size == 468 * 3).reshape(468, 3)[:, :2]
        logit = float(next(output for output in outputs if output.size == 1).reshape(()))
        confidence = 1.0 / (1.0 + math.exp(-max(-50.0, min(50.0, logit))))
        # The mesh's origin is the outer edge of the crop; here it is the centre of the first pixel.
        return transform_points(mesh - 0.5, invert_affine(matrix)), confidence


def five_points(mesh: NDArray[np.float32]) -> Points:
    """Reduce a mesh [468, 2] to the five points."""
    return np.stack(
        [
            mesh[list(_LEFT_EYE)].mean(0),
            mesh[list(_RIGHT_EYE)].mean(0),
            mesh[_NOSE_TIP],
            mesh[_LEFT_MOUTH_CORNER],
            mesh[_RIGHT_MOUTH_CORNER],
        ]
    )


def square_around(mesh: NDArray[np.float32], roll: float) -> RotatedSquare:
    """Frame a mesh [468, 2] as in the model's training: upright by the eyes, 1.5 times as wide as the face.

    Source: MediaPipe, modules/face_landmark, face_landmark_landmarks_to_roi.
    """
    return square_around_outline(mesh, five_points(mesh), roll)


def square_around_outline(outline: NDArray[np.float32], points: Points, roll: float = 0.0) -> RotatedSquare:
    """Frame a face by its outline [K, 2] and its five points, which have `roll` if its eyes coincide."""
    across = points[1] - points[0]
    if float(across @ across) > 0:
        roll = math.atan2(float(across[1]), float(across[0]))
    turn = np.array([[math.cos(roll), math.sin(roll)], [-math.sin(roll), math.cos(roll)]])
    upright = outline @ turn.T
    low, high = upright.min(0), upright.max(0)
    return RotatedSquare(((low + high) / 2) @ turn, MARGIN * max(1.0, float((high - low).max())), roll)


def _crop_matrix(square: RotatedSquare) -> Matrix:
    """Return the map from the rotated square of the picture to the model's input."""
    scale = INPUT_SIZE / square.side
    cosine, sine = scale * math.cos(square.roll), scale * math.sin(square.roll)
    linear = np.array([[cosine, sine], [-sine, cosine]])
    middle = (INPUT_SIZE - 1) / 2
    return np.concatenate([linear, (middle - linear @ square.centre)[:, None]], axis=1)
