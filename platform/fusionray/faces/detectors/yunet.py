"""YuNet detectors in the user's ONNX files, run by OpenCV.

Source: Wu et al., YuNet: A Tiny Millisecond-level Face Detector, 2023.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from fusionray.errors import DetectorUnavailable
from fusionray.faces.face import Face, Image

_LONGEST_SIDE = 1280


class YuNetDetector:
    """A YuNet ONNX file. Pictures over 1280 px are searched at 1280 px; `threshold` is the minimum score."""

    def __init__(self, path: Path, threshold: float = 0.6) -> None:
        self._path = path
        self._threshold = threshold
        self._model: cv2.FaceDetectorYN | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_model": None}

    def detect(self, image: Image, *, only_largest: bool = False) -> list[Face]:  # noqa: ARG002 - see below
        """Find the faces of a uint8 RGB HWC picture, best score first; an empty list if there is none.

        `only_largest` has no effect: the picture is searched once.
        """
        model = self._open()
        height, width = image.shape[:2]
        ratio = min(1.0, _LONGEST_SIDE / max(height, width))
        size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        if ratio < 1.0:
            bgr = cv2.resize(bgr, size, interpolation=cv2.INTER_AREA)
        model.setInputSize(size)
        _, rows = model.detect(bgr)
        if rows is None:
            return []
        enlarge = np.array([width / size[0], height / size[1]], np.float32)
        faces = []
        for row in np.asarray(rows, np.float32):
            box = np.concatenate([row[0:2] * enlarge, row[2:4] * enlarge])
            points = (row[4:14].reshape(5, 2) + 0.5) * enlarge - 0.5
            faces.append(Face(box, points.astype(np.float32), float(row[14])))
        return sorted(faces, key=lambda face: -face.score)

    def _open(self) -> cv2.FaceDetectorYN:
        if self._model is None:
            try:
                self._model = cv2.FaceDetectorYN.create(str(self._path), "", (320, 320), self._threshold)
            except cv2.error as error:
                raise DetectorUnavailable(f"{self._path}: OpenCV cannot open it as YuNet: {error.err}") from error
        return self._model
