"""Five-point alignment: map picture pixels to the pixels of a square crop with the face in a fixed place.

Coordinates follow OpenCV: pixel centres lie at whole numbers, so a picture of width W covers -0.5 .. W - 0.5. A
template is five points in the unit square of the crop; enlarging a crop from S to k * S therefore moves a point
from p to (p + 0.5) * k - 0.5, and a large crop reduced by area averaging is the small crop. Some models were trained on
crops that move it from p to p * k: these enlarge a template about the centre of its first pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray

from fusionray.faces.face import Image, Matrix, Points, TemplateAnchor

# Down to this scale, a warp that reads 4 pixels for each one it writes skips none that matters.
_SHARP_SCALE = 1 / 1.3
# Pixels around a region that a cubic resize and a linear warp of its result read.
_KERNEL_REACH = 4
# Between the pixels of a picture enlarged by this, a line differs by 52 dB from the cubic curve through all of them.
MAX_ENLARGEMENT = 4


@dataclass(frozen=True, eq=False, slots=True)
class Template:
    """The five points in a crop. `unit_points` is [5, 2] float64 in the unit square of the crop of the native size."""

    name: str
    native_size: int
    unit_points: NDArray[np.float64]
    anchor: TemplateAnchor = "edge"

    def points(self, size: int) -> Points:
        """Return the five points in the pixels of a crop of `size`; at the native size, the published numbers."""
        if self.anchor == "first_pixel":
            return ((self.unit_points * self.native_size - 0.5) * (size / self.native_size)).astype(np.float32)
        return (self.unit_points * size - 0.5).astype(np.float32)


def load_template(name: str, anchor: TemplateAnchor = "edge") -> Template:
    """Load a template of `templates.yaml` by its name.

    Raises:
        ValueError: no template has that name.
    """
    table = yaml.safe_load(files("fusionray.faces").joinpath("templates.yaml").read_text("utf-8"))
    if name not in table:
        raise ValueError(f"template: {name!r} is not known; choose one of {', '.join(sorted(table))}")
    native_size = int(table[name]["size"])
    points = np.asarray(table[name]["points"], np.float64)
    return Template(name, native_size, (points + 0.5) / native_size, anchor)


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


def compose(after: Matrix, before: Matrix) -> Matrix:
    """Return the affine map that does `before`, then `after`."""
    return np.asarray(after @ np.vstack([before, [0, 0, 1]]))


def resize_map(size: tuple[int, int], other: tuple[int, int]) -> Matrix:
    """Return the map from the pixels of a picture of a width and height to those of the picture resized to others."""
    across, down = other[0] / size[0], other[1] / size[1]
    return np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2]], np.float64)


def enlarge_map(factor: int) -> Matrix:
    """Return the map from the pixels of a crop to those of the crop enlarged by a whole factor."""
    return resize_map((1, 1), (factor, factor))


def move_origin(matrix_23: Matrix, left: int, top: int) -> Matrix:
    """Return the map for a part of the picture that begins at `left`, `top`."""
    moved = matrix_23.copy()
    moved[:, 2] += matrix_23[:, :2] @ (left, top)
    return moved


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


def region_under(matrix_23: Matrix, width: int, height: int, image: NDArray[np.generic]) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom (exclusive) of the picture's pixels under a `width` x `height` crop.

    A crop beside the picture has an empty region.
    """
    right, bottom = width - 0.5, height - 0.5
    corners = np.array([[-0.5, -0.5], [right, -0.5], [right, bottom], [-0.5, bottom]])
    in_picture = transform_points(corners, invert_affine(matrix_23))
    sides = np.array(image.shape[1::-1])
    low = np.clip(np.floor(in_picture.min(0)), 0, sides).astype(int)
    high = np.clip(np.ceil(in_picture.max(0)) + 1, low, sides).astype(int)
    return int(low[0]), int(low[1]), int(high[0]), int(high[1])


def warp(
    image: NDArray[np.generic], matrix_23: Matrix, width: int, height: int, *, border: int, cubic: bool = False
) -> NDArray[np.generic]:
    """Warp a picture through an affine map; where the map shrinks, average all pixels that fall on one.

    A plain warp reads 4 pixels for each one it writes, which aliases below half size. So the region under the crop is
    halved while the map shrinks to a half or less; what is left is warped to a picture twice as large, and that reduced
    by area averaging. `cubic` keeps an enlarged uint8 picture sharper; on floats, which do not saturate, its weights
    would overshoot.
    """
    scale = affine_scale(matrix_23)
    if scale <= 0.5:
        image, matrix_23 = _halve_region(image, matrix_23, width, height, border)
    elif cubic and scale >= 2.0:
        # A cubic resize takes a tenth of the time of a cubic warp; of the whole of a large picture it takes gigabytes.
        image, matrix_23 = _cut_region(image, matrix_23, width, height)
        image, matrix_23 = enlarge(image, matrix_23, min(math.floor(scale), MAX_ENLARGEMENT))
        cubic = False
    fold = 2 if affine_scale(matrix_23) < _SHARP_SCALE else 1
    matrix = _resized(matrix_23, 1.0, fold)
    flags = cv2.INTER_CUBIC if cubic and fold == 1 else cv2.INTER_LINEAR
    warped = np.asarray(cv2.warpAffine(image, matrix, (width * fold, height * fold), flags=flags, borderMode=border))
    if fold > 1:
        warped = np.asarray(cv2.resize(warped, (width, height), interpolation=cv2.INTER_AREA))
    return warped


def _resized(matrix_23: Matrix, picture: float, crop: float, origin: tuple[int, int] = (0, 0)) -> Matrix:
    """Return the map from a part of the picture, which begins at `origin` and is resized, to the resized crop."""
    linear = matrix_23[:, :2] * (crop / picture)
    # Pixel p of the part is pixel (p + 0.5) / picture - 0.5 + origin of the whole.
    shift = matrix_23[:, :2] @ (np.asarray(origin) + 0.5 / picture - 0.5) + matrix_23[:, 2]
    return np.concatenate([linear, ((shift + 0.5) * crop - 0.5)[:, None]], axis=1)


def _cut_region(
    image: NDArray[np.generic], matrix_23: Matrix, width: int, height: int
) -> tuple[NDArray[np.generic], Matrix]:
    """Return the region under a crop, with the pixels around it that a cubic kernel reads, and the rest of the map."""
    left, top, right, bottom = region_under(matrix_23, width, height, image)
    if right <= left or bottom <= top:
        return image, matrix_23
    left, top = max(0, left - _KERNEL_REACH), max(0, top - _KERNEL_REACH)
    part = image[top : bottom + _KERNEL_REACH, left : right + _KERNEL_REACH]
    return part, move_origin(matrix_23, left, top)


def _halve_region(
    image: NDArray[np.generic], matrix_23: Matrix, width: int, height: int, border: int
) -> tuple[NDArray[np.generic], Matrix]:
    """Halve the region under a crop as often as the map shrinks by two; return it with the rest of the map."""
    left, top, right, bottom = region_under(matrix_23, width, height, image)
    if right <= left or bottom <= top:
        return image, matrix_23
    depth = math.floor(math.log2(1.0 / max(affine_scale(matrix_23), 1e-6)))
    power = 2**depth
    # What the last warp reads around a pixel.
    left, top = max(0, left - 2 * power), max(0, top - 2 * power)
    # Whole halves: more of the picture where there is more, since a border would copy all of it.
    bottom, right = (end + 2 * power + (start - end) % power for start, end in ((top, bottom), (left, right)))
    part = image[top:bottom, left:right]
    down, across = (-length % power for length in part.shape[:2])
    if down or across:
        part = np.asarray(cv2.copyMakeBorder(part, 0, down, 0, across, border))
    for _ in range(depth):
        half = (part.shape[1] // 2, part.shape[0] // 2)
        part = np.asarray(cv2.resize(part, half, interpolation=cv2.INTER_AREA))
    return part, _resized(matrix_23, 1.0 / power, 1.0, (left, top))


def enlarge(
    image: NDArray[np.generic], matrix_23: Matrix, factor: int, interpolation: int = cv2.INTER_CUBIC
) -> tuple[NDArray[np.generic], Matrix]:
    """Enlarge a picture by a whole factor; return it with the rest of the map."""
    size = (image.shape[1] * factor, image.shape[0] * factor)
    return np.asarray(cv2.resize(image, size, interpolation=interpolation)), _resized(matrix_23, factor, 1.0)


def warp_crop(image: Image, matrix_23: Matrix, size: int) -> Image:
    """Cut the aligned crop [size, size, 3] out of a picture; outside the picture, its edge is repeated."""
    return warp(image, matrix_23, size, size, border=cv2.BORDER_REPLICATE, cubic=True).astype(np.uint8, copy=False)
