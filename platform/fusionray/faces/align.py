"""Five-point alignment: map picture pixels to the pixels of a square crop with the face in a fixed place.

Coordinates follow OpenCV: pixel centres lie at whole numbers, so a picture of width W covers -0.5 .. W - 0.5. A
template is five points in the unit square of the crop; enlarging a crop from S to k * S therefore moves a point
from p to (p + 0.5) * k - 0.5, and a large crop reduced by area averaging is the small crop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray

from fusionray.faces.face import Image, Matrix, Points

# Limits the memory of a warp that shrinks; beyond it, a few pixels may be skipped.
_MAX_WARP_SIDE = 8192


@dataclass(frozen=True, eq=False, slots=True)
class Template:
    """The five points in a crop. `unit_points` is [5, 2] float64 in the unit square of the crop."""

    name: str
    native_size: int
    unit_points: NDArray[np.float64]

    def points(self, size: int) -> Points:
        """Return the five points in the pixels of a crop of `size`; at the native size, the published numbers."""
        return (self.unit_points * size - 0.5).astype(np.float32)


def load_template(name: str) -> Template:
    """Load a template of `templates.yaml` by its name.

    Raises:
        ValueError: no template has that name.
    """
    table = yaml.safe_load(files("fusionray.faces").joinpath("templates.yaml").read_text("utf-8"))
    if name not in table:
        raise ValueError(f"template: {name!r} is not known; choose one of {', '.join(sorted(table))}")
    native_size = int(table[name]["size"])
    points = np.asarray(table[name]["points"], np.float64)
    return Template(name, native_size, (points + 0.5) / native_size)


def fit_similarity(source: NDArray[np.floating], target: NDArray[np.floating]) -> Matrix:
    """Fit the scale, rotation and shift (no mirroring) that map [K, 2] points to others with the least squared error.

    Raises:
        ValueError: the source points coincide.

    Source: Umeyama, Least-squares estimation of transformation parameters between two point patterns, 1991, eq. 40-43.
    """
    start, end = np.asarray(source, np.float64), np.asarray(target, np.float64)
    start_mean, end_mean = start.mean(0), end.mean(0)
    start_centred, end_centred = start - start_mean, end - end_mean
    variance = (start_centred**2).sum() / len(start)
    if not np.isfinite(variance) or variance < 1e-12:
        raise ValueError("landmarks: the points coincide, so they give no scale and no direction")
    covariance = end_centred.T @ start_centred / len(start)
    u, singular, vt = np.linalg.svd(covariance)
    signs = np.array([1.0, np.sign(np.linalg.det(u) * np.linalg.det(vt)) or 1.0])
    rotation = u @ np.diag(signs) @ vt
    scale = (singular * signs).sum() / variance
    linear = scale * rotation
    return np.concatenate([linear, (end_mean - linear @ start_mean)[:, None]], axis=1)


def estimate_alignment(landmarks_52: Points, template: Template, size: int) -> Matrix:
    """Estimate the map from picture pixels to the pixels of a `size` x `size` crop."""
    return fit_similarity(landmarks_52, template.points(size))


def template_to_template(source: Template, source_size: int, target: Template, target_size: int) -> Matrix:
    """Return the map from the pixels of one template's crop to those of another's, to align a crop anew."""
    return fit_similarity(source.points(source_size), target.points(target_size))


def invert_affine(matrix_23: Matrix) -> Matrix:
    """Invert an affine map of pixel coordinates."""
    linear = np.linalg.inv(matrix_23[:, :2])
    return np.concatenate([linear, -linear @ matrix_23[:, 2:]], axis=1)


def transform_points(points: NDArray[np.floating], matrix_23: Matrix) -> NDArray[np.float32]:
    """Map [K, 2] points through an affine map."""
    return (np.asarray(points, np.float64) @ matrix_23[:, :2].T + matrix_23[:, 2]).astype(np.float32)


def affine_scale(matrix_23: Matrix) -> float:
    """Return the factor by which an affine map enlarges lengths (the root of the area ratio)."""
    return math.sqrt(abs(float(np.linalg.det(matrix_23[:, :2]))))


def warp(
    image: NDArray[np.generic], matrix_23: Matrix, width: int, height: int, *, border: int, cubic: bool = False
) -> NDArray[np.generic]:
    """Warp a picture through an affine map; where the map shrinks, average all pixels that fall on one.

    A plain warp reads 4 pixels for each one it writes, which aliases below half size. This one warps to a picture k
    times as large, where no pixel is skipped, and reduces it by exact area averaging. `cubic` keeps an enlarged uint8
    picture sharper; on floats its weights would overshoot, because they do not saturate.
    """
    fold = max(1, math.ceil(1.0 / max(affine_scale(matrix_23), 1e-6) - 0.3))
    fold = min(fold, max(1, _MAX_WARP_SIDE // max(width, height)))
    enlarge = np.array([[fold, 0.0, (fold - 1) / 2], [0.0, fold, (fold - 1) / 2]])
    matrix = enlarge[:, :2] @ matrix_23
    matrix[:, 2] += enlarge[:, 2]
    flags = cv2.INTER_CUBIC if cubic and fold == 1 else cv2.INTER_LINEAR
    warped = np.asarray(cv2.warpAffine(image, matrix, (width * fold, height * fold), flags=flags, borderMode=border))
    if fold > 1:
        warped = np.asarray(cv2.resize(warped, (width, height), interpolation=cv2.INTER_AREA))
    return warped


def warp_crop(image: Image, matrix_23: Matrix, size: int) -> Image:
    """Cut the aligned crop [size, size, 3] out of a picture; outside the picture, its edge is repeated."""
    return warp(image, matrix_23, size, size, border=cv2.BORDER_REPLICATE, cubic=True).astype(np.uint8, copy=False)
