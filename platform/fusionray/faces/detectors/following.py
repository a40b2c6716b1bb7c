"""Follow a face from one frame of a video to the next: the mesh looks where the face was, without a search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.align import affine_scale, fit_similarity, transform_points
from fusionray.faces.detectors.facemesh import MESH_FILE, FaceMesh, RotatedSquare, square_around_outline
from fusionray.faces.detectors.pyramid import Pyramid
from fusionray.faces.detectors.tflite import locate_mediapipe_models
from fusionray.faces.face import Face, Image

# A mesh that is less sure than this shows no face, or only a part of one.
LEAST_CONFIDENCE = 0.5
# What the mesh may look at beside its square, when it frames the face anew.
ROOM = 0.5
# From one frame to the next a face neither grows nor shrinks by more than this.
LARGEST_GROWTH = 1.5


class FaceFollower:
    """Finds the faces of the frame before again. A follower can be pickled; it opens its model where it is used.

    Its points are those of the default detector, so that a face does not jump where it is searched again; the points of
    other detectors lie elsewhere in a face.

    Raises: DetectorUnavailable if the model of the mediapipe package is missing.
    """

    def __init__(self) -> None:
        self._mesh: FaceMesh | None = None
        locate_mediapipe_models(MESH_FILE)

    def __getstate__(self) -> dict[str, object]:
        return {"_mesh": None}

    def follow(self, image: Image, face: Face) -> Face | None:
        """Find a face of the default detector in the next frame, uint8 RGB HWC; None if it is not there any more.

        A face that moves by more than half of its width between two frames is lost; a search finds it again.
        """
        if face.outline is None:
            raise ValueError("face: has no outline; only faces of the default detector can be followed")
        if self._mesh is None:
            self._mesh = FaceMesh(*locate_mediapipe_models(MESH_FILE))
        square = square_around_outline(face.outline, face.landmarks)
        region, corner = cut_region(image, square)
        if not region.size:
            return None
        inside = RotatedSquare(square.centre - corner, square.side, square.roll)
        located = self._mesh.locate(Pyramid(region), inside)
        if located.confidence < LEAST_CONFIDENCE:
            return None
        points, outline = located.points + corner, located.outline + corner
        motion = fit_similarity(face.landmarks, points)
        if not 1 / LARGEST_GROWTH < affine_scale(motion) < LARGEST_GROWTH or is_outside(outline, image):
            return None
        return replace(face, box=move_box(face.box, motion), landmarks=points, outline=outline)


def cut_region(image: Image, square: RotatedSquare) -> tuple[Image, NDArray[np.float32]]:
    """Cut what the mesh may see of a picture; return it and its corner (x, y): a pyramid of all would take longer."""
    reach = square.side * (math.sqrt(0.5) + ROOM)
    low = np.maximum(np.floor(square.centre - reach), 0).astype(int)
    high = np.maximum(np.ceil(square.centre + reach), 0).astype(int)
    return image[low[1] : high[1], low[0] : high[0]], low.astype(np.float32)


def move_box(box: NDArray[np.float32], motion: NDArray[np.float64]) -> NDArray[np.float32]:
    """Move the centre of a box [4] through an affine map, and scale its sides; it stays upright."""
    sides = box[2:] * affine_scale(motion)
    (centre,) = transform_points((box[:2] + box[2:] / 2)[None], motion)
    return np.concatenate([centre - sides / 2, sides]).astype(np.float32)


def is_outside(outline: NDArray[np.float32], image: Image) -> bool:
    """Tell whether most of a face has left the picture: the mesh guesses what it does not see."""
    inside = (outline >= 0).all(1) & (outline < image.shape[1::-1]).all(1)
    return float(inside.mean()) < 0.5
