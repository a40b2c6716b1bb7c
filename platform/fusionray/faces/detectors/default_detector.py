"""The default detector: BlazeFace on the whole picture and on tiles, then face mesh for the five points."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.detectors.blazeface import FULL_RANGE, SHORT_RANGE, BlazeFace, Candidates
from fusionray.faces.detectors.facemesh import MARGIN, MESH_FILE, FaceMesh, LocatedFace, RotatedSquare
from fusionray.faces.detectors.pyramid import Pyramid
from fusionray.faces.detectors.tflite import locate_mediapipe_models
from fusionray.faces.face import Face, Image, group_by_face, largest_face

_FILES = (
    "face_detection/face_detection_short_range.tflite",
    "face_detection/face_detection_full_range_sparse.tflite",
    MESH_FILE,
)
_OVERLAP = 0.3
_MIN_CONFIDENCE = 0.2
# A model finds nearly every face wider than the searched square divided by this (docs/benchmarks.md, "Finding faces").
_SHORT_REACH, _FULL_REACH = 4.0, 9.0
# What is worth fusing: narrower faces are searched for only if the caller says so.
_SMALLEST_PIXELS, _SMALLEST_SHARE = 46.0, 1 / 44


class DefaultDetector:
    """Finds several faces, near and far, with the models of the mediapipe package.

    Two models search the whole picture, padded to a square: the short-range model finds faces down to a quarter of its
    side, the full-range model down to a ninth. The full-range model then searches tiles, at each level half as wide
    as before or wider, for the faces between that and `smallest`, a width in pixels. By default that is 46, or in a
    large picture the 44th part of its longer side.
    """

    def __init__(self, threshold: float = 0.5, smallest: float | None = None) -> None:
        self._threshold = threshold
        self._smallest = smallest
        self._models: tuple[BlazeFace, BlazeFace, FaceMesh] | None = None
        # Locate the files now, so that the caller gets the error, and not a worker elsewhere.
        locate_mediapipe_models(*_FILES)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_models": None}

    def detect(self, image: Image, *, only_largest: bool = False) -> list[Face]:
        """Find the faces of a uint8 RGB HWC picture, best score first; an empty list if there is none.

        With `only_largest` the search ends once no face larger than one that is found can be left.
        """
        pyramid = Pyramid(image)
        for found, limit in self._search_rounds(pyramid):
            # The mesh takes as long as a look at a tile, so it waits until a candidate is large enough.
            if only_largest and (found.boxes[:, 2:] >= limit).any():
                faces = self._confirm(pyramid, found)
                if faces and math.sqrt(largest_face(faces).area) >= limit:
                    return faces
        return self._confirm(pyramid, found)

    def _search_rounds(self, pyramid: Pyramid) -> Iterator[tuple[Candidates, float]]:
        """Search in rounds; yield all candidates so far, and the width down to which nearly every face is found."""
        short_range, full_range, _ = self._open()
        height, width = pyramid.levels[0].shape[:2]
        side = max(width, height)
        found = _search(short_range, pyramid, 0, 0, side)
        yield found, side / _SHORT_REACH
        found = found.join(_search(full_range, pyramid, 0, 0, side))
        yield found, side / _FULL_REACH
        limit = side / _FULL_REACH
        for tile in _tile_sides(side, self._smallest or smallest_width(height, width)):
            before = found.boxes
            for top in _starts(height, tile, limit):
                for left in _starts(width, tile, limit):
                    # Inside of a face there is no other one.
                    if not _is_covered(before, left, top, min(tile, width - left), min(tile, height - top)):
                        found = found.join(_search(full_range, pyramid, left, top, tile))
            limit = tile / _FULL_REACH
            yield found, limit

    def _confirm(self, pyramid: Pyramid, found: Candidates) -> list[Face]:
        """Join the candidates for each face; the mesh places the points and confirms the face."""
        _, _, mesh = self._open()
        faces = []
        for group in group_by_face(found.boxes, found.scores, _OVERLAP):
            # The mean of all candidates for a face is more stable than the best of them (BlazeFace, section 3.4).
            weights = found.scores[group] / found.scores[group].sum()
            box = np.tensordot(weights, found.boxes[group], axes=1).astype(np.float32)
            located = _run_mesh(mesh, pyramid, box, np.tensordot(weights, found.eyes[group], axes=1))
            score = float(found.scores[group[0]])
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


def smallest_width(height: int, width: int) -> float:
    """Return the width in pixels from which a face of a picture is worth fusing."""
    return max(_SMALLEST_PIXELS, max(height, width) * _SMALLEST_SHARE)


def _search(model: BlazeFace, pyramid: Pyramid, left: int, top: int, side: int) -> Candidates:
    """Search one square, as far as it is inside the picture; return candidates in pixels of the picture."""
    level, factor = pyramid.level(side / model.input_size)
    left, top, side = left // factor, top // factor, math.ceil(side / factor)
    found = model.find(level[top : top + side, left : left + side])
    # Pixel centres are at whole numbers, on every level.
    origin = np.array([left + 0.5, top + 0.5], np.float32)
    corners, eyes = (found.boxes[:, :2] + origin) * factor - 0.5, (found.eyes + origin) * factor - 0.5
    boxes = np.concatenate([corners, found.boxes[:, 2:] * factor], axis=1)
    return Candidates(boxes.astype(np.float32), eyes.astype(np.float32), found.scores)


def _tile_sides(side: int, smallest: float) -> list[int]:
    """Choose the tiles' sides: geometric steps of at most a half, down to where a face of `smallest` is found."""
    last = _FULL_REACH * smallest
    # A tile nearly as wide as the picture would show little more than the whole picture did.
    if last > 0.8 * side:
        return []
    steps = math.ceil(math.log2(side / last))
    return [math.ceil(side * (last / side) ** (step / steps)) for step in range(1, steps + 1)]


def _starts(length: int, tile: int, overlap: float) -> list[int]:
    """Place tiles along one axis, with at least `overlap` between neighbours: a face on an edge is whole in one."""
    if length <= tile:
        return [0]
    count = math.ceil((length - tile) / (tile - overlap)) + 1
    return [round(step * (length - tile) / (count - 1)) for step in range(count)]


def _is_covered(boxes: NDArray[np.float32], left: int, top: int, width: int, height: int) -> bool:
    """Tell whether one of the boxes [K, 4] covers most of a rectangle."""
    low = np.maximum(boxes[:, :2], (left, top))
    high = np.minimum(boxes[:, :2] + boxes[:, 2:], (left + width, top + height))
    shared = np.prod(np.maximum(high - low, 0.0), axis=1)
    return bool((shared > 0.6 * width * height).any())


def _run_mesh(mesh: FaceMesh, pyramid: Pyramid, box: NDArray[np.float32], eyes: NDArray[np.float32]) -> LocatedFace:
    """Run the mesh on the face in a box."""
    across = eyes[1] - eyes[0]
    roll = math.atan2(float(across[1]), float(across[0]))
    centre = np.asarray(box[:2] + box[2:] / 2, np.float64)
    return mesh.locate(pyramid, RotatedSquare(centre, MARGIN * float(max(box[2], box[3])), roll))
