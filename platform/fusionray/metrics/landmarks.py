"""Where the face mesh sees the five points of a face in an aligned crop.

Shape suffixes: N batch, H rows, W columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.align import Template
from fusionray.faces.facemesh import FaceMesh, RotatedSquare
from fusionray.faces.tflite import locate_mediapipe_models

MESH_FILE = "face_landmark/face_landmark.tflite"
# Below this confidence there is no face (MediaPipe, face_landmark: min_tracking_confidence).
MIN_CONFIDENCE = 0.5
# The mesh wants a face framed as in its training; of 3 to 5.5 eye distances this came nearest to the true points, on
# synthetic faces of every template.
SQUARE_EYE_DISTANCES = 3.6


class CropLandmarks:
    """Find the five points of aligned crops, without looking for the face: the template says where it is.

    Raises: DetectorUnavailable.
    """

    def __init__(self, template: Template, size: int) -> None:
        # The file is asked for now and opened by whoever looks first: a driver only asks.
        (self.path,) = locate_mediapipe_models(MESH_FILE)
        self.mesh: FaceMesh | None = None
        points = template.points(size).astype(np.float64)
        self.square = RotatedSquare(points.mean(axis=0), SQUARE_EYE_DISTANCES * float(eye_distance(points)), roll=0.0)

    def locate(self, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Locate the points [N,5,2] of crops [N,H,W,3] RGB in crop pixels; nan in every row without a face."""
        if self.mesh is None:
            self.mesh = FaceMesh(self.path)
        found = np.full((len(crops), 5, 2), np.nan, np.float32)
        for row, crop in enumerate(crops):
            seen = self.mesh.locate(crop, self.square)
            if seen.confidence >= MIN_CONFIDENCE:
                found[row] = seen.points
        return found


def eye_distance(points: NDArray[np.floating]) -> NDArray[np.float64]:
    """Give how far the eyes lie apart, of points [...,5,2]."""
    distance: NDArray[np.float64] = np.linalg.norm(points[..., 0, :].astype(np.float64) - points[..., 1, :], axis=-1)
    return distance


def landmark_distance(first_N52: NDArray[np.float32], second_N52: NDArray[np.float32]) -> NDArray[np.float64]:
    """Give the mean distance of the five points over the eye distance of `second`, [N]; nan where one has no face."""
    apart_N = np.linalg.norm(first_N52.astype(np.float64) - second_N52, axis=-1).mean(axis=-1)
    distance_N: NDArray[np.float64] = apart_N / eye_distance(second_N52)
    return distance_N
