"""Five landmarks of aligned crops, located by the face mesh, and the distance between landmarks of two crops.

Shape suffixes: N batch, H rows, W columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.align import Template
from fusionray.faces.detectors.facemesh import MESH_FILE, FaceMesh, RotatedSquare
from fusionray.faces.detectors.pyramid import Pyramid
from fusionray.faces.detectors.tflite import locate_mediapipe_models

# Below this confidence there is no face (MediaPipe, face_landmark: min_tracking_confidence).
MIN_CONFIDENCE = 0.5
# Side of the square that the mesh gets, which must frame the face as in its training. Of 3 to 5.5 eye distances this
# was closest to the true landmarks, on synthetic faces of every template.
SQUARE_EYE_DISTANCES = 3.6


class CropLandmarks:
    """Locate the five landmarks of aligned crops; no detector runs, since the template says where the face is.

    Raises: DetectorUnavailable if the model file of the face mesh is missing.
    """

    def __init__(self, template: Template, size: int) -> None:
        # The first `locate` opens the file: a driver only checks that the file exists.
        (self.path,) = locate_mediapipe_models(MESH_FILE)
        self.mesh: FaceMesh | None = None
        points = template.points(size).astype(np.float64)
        self.square = RotatedSquare(points.mean(axis=0), SQUARE_EYE_DISTANCES * float(eye_distance(points)), roll=0.0)

    def locate(self, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the landmarks [N,5,2] of uint8 crops [N,H,W,3] RGB in crop pixels; nan in every row without a face."""
        if self.mesh is None:
            self.mesh = FaceMesh(self.path)
        points_N52 = np.full((len(crops), 5, 2), np.nan, np.float32)
        for row, crop in enumerate(crops):
            located = self.mesh.locate(Pyramid(crop), self.square)
            if located.confidence >= MIN_CONFIDENCE:
                points_N52[row] = located.points
        return points_N52


def eye_distance(points: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the distance between the eyes, of points [...,5,2]."""
    distance: NDArray[np.float64] = np.linalg.norm(points[..., 0, :].astype(np.float64) - points[..., 1, :], axis=-1)
    return distance


def landmark_distance(first_N52: NDArray[np.float32], second_N52: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean distance of the five points over the eye distance of `second`: [N]; nan without a face."""
    pixels_N = np.linalg.norm(first_N52.astype(np.float64) - second_N52, axis=-1).mean(axis=-1)
    distance_N: NDArray[np.float64] = pixels_N / eye_distance(second_N52)
    return distance_N


def landmark_acceleration(points_T52: NDArray[np.floating]) -> float:
    """Return the mean length of the second differences of the points of consecutive frames, in their unit.

    0 for points that stand still or move evenly; frames without a face (nan) and their neighbours do not count. nan if
    no three frames in a row have one.
    """
    length_T5 = np.linalg.norm(np.diff(points_T52.astype(np.float64), 2, axis=0), axis=2)
    known = length_T5[~np.isnan(length_T5).any(axis=1)]
    return float(known.mean()) if len(known) else float("nan")
