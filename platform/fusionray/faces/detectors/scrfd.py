"""SCRFD detectors in the user's ONNX files, run by ONNX Runtime on the CPU.

Source: Guo et al., Sample and Computation Redistribution for Efficient Face Detection, 2021; output layout as in
insightface, python-package/insightface/model_zoo/retinaface.py: nine outputs, for the strides 8, 16, 32 scores, then
distances to the box sides, then offsets of five points, both in units of the stride.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from fusionray.errors import DetectorUnavailable
from fusionray.faces.face import Face, Image, keep_best
from fusionray.onnx_errors import ONNX_ERRORS

_STRIDES = (8, 16, 32)
_DYNAMIC_SIZE = 640


class ScrfdDetector:
    """An ONNX file with nine outputs; the picture is searched once, padded at right and bottom to the model's size."""

    def __init__(self, path: Path, threshold: float = 0.5) -> None:
        self._path = path
        self._threshold = threshold
        self._session: onnxruntime.InferenceSession | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_session": None}

    def detect(self, image: Image, *, only_largest: bool = False) -> list[Face]:  # noqa: ARG002 - see below
        """Find the faces of a uint8 RGB HWC picture, best score first; an empty list if there is none.

        `only_largest` has no effect: the picture is searched once.
        """
        session = self._open()
        source = session.get_inputs()[0]
        model_height, model_width = (n if isinstance(n, int) and n > 0 else _DYNAMIC_SIZE for n in source.shape[2:4])
        height, width = image.shape[:2]
        ratio = min(model_width / width, model_height / height)
        size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
        interpolation = cv2.INTER_AREA if ratio < 1.0 else cv2.INTER_LINEAR
        padded = np.zeros((model_height, model_width, 3), np.uint8)
        padded[: size[1], : size[0]] = cv2.resize(image, size, interpolation=interpolation)
        tensor_NCHW = ((padded.astype(np.float32) - 127.5) / 128.0).transpose(2, 0, 1)[None]
        outputs = session.run(None, {source.name: np.ascontiguousarray(tensor_NCHW)})
        boxes, points, scores = decode_grids(outputs, model_height, model_width, self._threshold)
        enlarge = np.array([width / size[0], height / size[1]], np.float32)
        faces = []
        for index in keep_best(boxes, scores, 0.4):
            box = boxes[index] * np.tile(enlarge, 2)
            landmarks = (points[index] + 0.5) * enlarge - 0.5
            faces.append(Face(box.astype(np.float32), landmarks.astype(np.float32), float(scores[index])))
        return faces

    def _open(self) -> onnxruntime.InferenceSession:
        if self._session is None:
            self._session = open_on_cpu(self._path)
        return self._session


def decode_grids(
    outputs: list[NDArray[np.float32]], height: int, width: int, threshold: float
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Turn the nine outputs into boxes [K, 4] (left, top, width, height), points [K, 5, 2] and scores [K] in pixels.

    Anchors lie on the corners of a grid of the stride; the number of rows gives the number of anchors at a corner.
    """
    boxes, points, scores = [], [], []
    for level, stride in enumerate(_STRIDES):
        score_K = outputs[level].reshape(-1)
        distance_K4 = outputs[level + 3].reshape(-1, 4) * stride
        offset_K52 = outputs[level + 6].reshape(-1, 5, 2) * stride
        rows, columns = np.mgrid[0 : height // stride, 0 : width // stride].astype(np.float32)
        grid = np.stack([columns, rows], axis=-1).reshape(-1, 2) * stride
        anchors = np.repeat(grid, len(score_K) // len(grid), axis=0)
        found = score_K > threshold
        centre, distance = anchors[found], distance_K4[found]
        boxes.append(np.concatenate([centre - distance[:, :2], distance[:, :2] + distance[:, 2:]], axis=1))
        points.append(centre[:, None] + offset_K52[found])
        scores.append(score_K[found])
    return np.concatenate(boxes), np.concatenate(points), np.concatenate(scores)


def open_on_cpu(path: Path) -> onnxruntime.InferenceSession:
    """Open an ONNX file on one CPU thread.

    Raises:
        DetectorUnavailable: the file is not an ONNX model that runs here.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except (*ONNX_ERRORS, RuntimeError, ValueError) as error:
        raise DetectorUnavailable(f"{path}: not an ONNX model that runs here: {str(error).splitlines()[0]}") from error
