"""BlazeFace: boxes and rough key points of all faces in a square picture, from a TFLite file.

Source: Bazarevsky et al., BlazeFace: Sub-millisecond Neural Face Detection on Mobile GPUs, 2019; anchor layout of the
two models as in MediaPipe's face_detection module.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.detectors.tflite import TfliteModel
from fusionray.faces.face import Image


@dataclass(frozen=True, slots=True)
class AnchorLayout:
    """The anchors of a model: for each grid (cells a side, anchors a cell)."""

    input_size: int
    grids: tuple[tuple[int, int], ...]


SHORT_RANGE = AnchorLayout(128, ((16, 2), (8, 6)))
FULL_RANGE = AnchorLayout(192, ((48, 1),))


@dataclass(frozen=True, eq=False, slots=True)
class Candidates:
    """The K faces found by one pass, in pixels of the searched picture.

    `boxes` [K, 4] left, top, width, height; `eyes` [K, 2, 2] the eye at image left, the eye at image right; `scores`
    [K] in 0..1.
    """

    boxes: NDArray[np.float32]
    eyes: NDArray[np.float32]
    scores: NDArray[np.float32]

    def join(self, others: Candidates) -> Candidates:
        """Return these and other candidates as one set."""
        return Candidates(
            np.concatenate([self.boxes, others.boxes]),
            np.concatenate([self.eyes, others.eyes]),
            np.concatenate([self.scores, others.scores]),
        )


class BlazeFace:
    """One BlazeFace model, ready to run on pictures of any shape."""

    def __init__(self, path: Path, layout: AnchorLayout, threshold: float) -> None:
        self._model = TfliteModel(path)
        self._layout = layout
        self._threshold = threshold
        self._anchors_K2 = anchor_centres(layout)

    @property
    def input_size(self) -> int:
        """Return the side of the model's input in pixels."""
        return self._layout.input_size

    def find(self, image: Image) -> Candidates:
        """Find the faces of a uint8 RGB HWC picture, without removing duplicates."""
        size = self._layout.input_size
        square, scale, padding = fit_square(image, size)
        outputs = self._model.run((square.astype(np.float32) / 127.5 - 1.0)[None])
        regressors = next(output for output in outputs if output.shape[-1] == 16)[0]
        logits = next(output for output in outputs if output.shape[-1] == 1)[0, :, 0]
        scores = 1.0 / (1.0 + np.exp(-np.clip(logits, -50.0, 50.0)))
        found = scores > self._threshold
        raw, anchors = regressors[found], self._anchors_K2[found] * size
        centre, sides = raw[:, 0:2] + anchors, raw[:, 2:4]
        eyes = raw[:, 4:8].reshape(-1, 2, 2) + anchors[:, None]
        # The model's origin is the outer edge of the square; here it is the centre of the first pixel.
        corner = (centre - sides / 2 - padding) / scale - 0.5
        return Candidates(
            np.concatenate([corner, sides / scale], axis=1).astype(np.float32),
            ((eyes - padding) / scale - 0.5).astype(np.float32),
            scores[found].astype(np.float32),
        )


def fit_square(image: Image, size: int) -> tuple[Image, NDArray[np.float32], NDArray[np.float32]]:
    """Fit a picture into the middle of a black square.

    Returns the square, the scale of each axis (x, y), and the padding (x, y) at its left and top.
    """
    height, width = image.shape[:2]
    ratio = size / max(height, width)
    fitted = (max(1, round(width * ratio)), max(1, round(height * ratio)))
    interpolation = cv2.INTER_AREA if ratio < 1.0 else cv2.INTER_LINEAR
    left, top = (size - fitted[0]) // 2, (size - fitted[1]) // 2
    square = np.zeros((size, size, 3), np.uint8)
    square[top : top + fitted[1], left : left + fitted[0]] = cv2.resize(image, fitted, interpolation=interpolation)
    scale = np.array([fitted[0] / width, fitted[1] / height], np.float32)
    return square, scale, np.array([left, top], np.float32)


def anchor_centres(layout: AnchorLayout) -> NDArray[np.float32]:
    """Return the [K, 2] anchor centres in 0..1, cell by cell in reading order, grid after grid."""
    centres: list[NDArray[np.float32]] = []
    for cells, anchors_a_cell in layout.grids:
        rows, columns = np.mgrid[0:cells, 0:cells].astype(np.float32)
        grid = np.stack([columns, rows], axis=-1).reshape(-1, 2)
        centres.append(np.repeat((grid + 0.5) / cells, anchors_a_cell, axis=0))
    return np.concatenate(centres)
