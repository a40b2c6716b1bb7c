"""The default detector: BlazeFace on the whole picture and on tiles, then face mesh for the five points."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.blazeface import FULL_RANGE, SHORT_RANGE, BlazeFace, Candidates
from fusionray.faces.face import Face, Image, group_by_face
from fusionray.faces.facemesh import MARGIN, FaceMesh, LocatedFace, RotatedSquare
from fusionray.faces.tflite import locate_mediapipe_models

_FILES = (
    "face_detection/face_detection_short_range.tflite",
    "face_detection/face_detection_full_range_sparse.tflite",
    "face_landmark/face_landmark.tflite",
)
_OVERLAP = 0.3
_MIN_CONFIDENCE = 0.2


class DefaultDetector:
    """Finds several faces, near and far, with the models of the mediapipe package.

    The short-range model searches the whole picture, padded to a square, and finds faces down to a sixth of its side.
    The full-range model searches pictures larger than `tile_pixels` again, as a whole and in overlapping tiles of half
    and a quarter of that square, at least `tile_pixels` wide; it finds faces down to a twentieth of a tile. It also
    searches a small picture in which the short-range model finds no face.
    """

    def __init__(self, threshold: float = 0.5, tile_pixels: int = 512) -> None:
        self._threshold = threshold
        self._tile_pixels = tile_pixels
        self._models: tuple[BlazeFace, BlazeFace, FaceMesh] | None = None
        # Locate the files now, so that the caller gets the error, and not a worker elsewhere.
        locate_mediapipe_models(*_FILES)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_models": None}

    def detect(self, image: Image) -> list[Face]:
        """Find the faces of a uint8 RGB HWC picture, best score first; an empty list if there is none."""
        short_range, full_range, _ = self._open()
        height, width = image.shape[:2]
        side = max(height, width)
        rounds = [_search(short_range, image, 0, 0, side)]
        if side > self._tile_pixels:
            rounds.append(_search(full_range, image, 0, 0, side))
            for left, top, tile in _tiles(width, height, self._tile_pixels):
                rounds.append(_search(full_range, image, left, top, tile))
        faces = self._confirm(image, rounds)
        if not faces and side <= self._tile_pixels:
            faces = self._confirm(image, [_search(full_range, image, 0, 0, side)])
        return faces

    def _confirm(self, image: Image, rounds: list[Candidates]) -> list[Face]:
        """Join the candidates for each face; the mesh places the points and confirms the face."""
        _, _, mesh = self._open()
        boxes = np.concatenate([found.boxes for found in rounds])
        eyes = np.concatenate([found.eyes for found in rounds])
        scores = np.concatenate([found.scores for found in rounds])
        faces = []
        for group in group_by_face(boxes, scores, _OVERLAP):
            # The mean of all candidates for a face is more stable than the best of them (BlazeFace, section 3.4).
            weights = scores[group] / scores[group].sum()
            box = np.tensordot(weights, boxes[group], axes=1).astype(np.float32)
            located = _run_mesh(mesh, image, box, np.tensordot(weights, eyes[group], axes=1))
            score = float(scores[group[0]])
            # A high score outweighs a doubtful mesh (dark glasses), but not a mesh that finds no face.
            if located.confidence >= _MIN_CONFIDENCE and (score + located.confidence) / 2 >= self._threshold:
                faces.append(Face(box, located.points, score, located.outline))
        return faces

    def _open(self) -> tuple[BlazeFace, BlazeFace, FaceMesh]:
        if self._models is None:
            short_range, full_range, mesh = locate_mediapipe_models(*_FILES)
            self._models = (
                BlazeFace(short_range, SHORT_RANGE, self._threshold),
                # The sparse full-range model gives higher scores: MediaPipe's thresholds are 0.6 for it and 0.5 above.
                BlazeFace(full_range, FULL_RANGE, min(0.95, self._threshold + 0.1)),
                FaceMesh(mesh),
            )
        return self._models


def _search(model: BlazeFace, image: Image, left: int, top: int, side: int) -> Candidates:
    """Search one square, as far as it is inside the picture; return candidates in pixels of the picture."""
    found = model.find(image[top : top + side, left : left + side])
    found.boxes[:, :2] += (left, top)
    found.eyes[...] += (left, top)
    return found


def _tiles(width: int, height: int, tile_pixels: int) -> Iterator[tuple[int, int, int]]:
    """Yield left, top, side of tiles that overlap by half, each level half as wide as the one before."""
    side = tile = max(width, height)
    smallest = max(tile_pixels, math.ceil(side / 4))
    while tile > smallest:
        tile = max(smallest, math.ceil(tile / 2))
        for top in _starts(height, tile):
            for left in _starts(width, tile):
                yield left, top, tile


def _starts(length: int, tile: int) -> list[int]:
    if length <= tile:
        return [0]
    count = math.ceil((length - tile) / (tile * 0.5)) + 1
    return [round(step * (length - tile) / (count - 1)) for step in range(count)]


def _run_mesh(mesh: FaceMesh, image: Image, box: NDArray[np.float32], eyes: NDArray[np.float32]) -> LocatedFace:
    """Run the mesh on the face in a box."""
    across = eyes[1] - eyes[0]
    roll = math.atan2(float(across[1]), float(across[0]))
    centre = np.asarray(box[:2] + box[2:] / 2, np.float64)
    return mesh.locate(image, RotatedSquare(centre, MARGIN * float(max(box[2], box[3])), roll))
