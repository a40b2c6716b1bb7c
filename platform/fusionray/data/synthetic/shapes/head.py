"""The head: its shape, its intersection with rays, and the positions of the features on it.

Head frame: crown at y = -1, chin near y = +1, face towards +z. Legend: planes [N, H, W], row scalars [N, 1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import constant_like
from fusionray.data.synthetic.graphics.geometry import Pose, Vector, along_ray, intersect_ellipsoid, is_above
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow
from fusionray.data.synthetic.parameters.definitions import ParameterColumns

# Heights at which the width of the outline is given; a quartic interpolates between them.
_PROFILE_HEIGHTS = (-0.92, -0.5, 0.06, 0.6, 0.9)


@dataclass(frozen=True)
class HeadShape:
    """An ellipsoid whose width is multiplied by a quartic of the height, and the positions of the features on it."""

    half_width: Tensor
    crown: Tensor
    chin: Tensor
    half_depth: Tensor
    profile: tuple[Tensor, ...]
    eye_x: Tensor
    eye_y: Tensor
    eye_half_width: Tensor
    nose_y: Tensor
    mouth_y: Tensor
    ear_y: Tensor
    ear_out: Tensor

    def ear_centre(self, side: float) -> Vector:
        """Return the centre of an ear in the head frame; side = -1 for the ear at the image left."""
        x = side * (self.half_width * self.width_at(self.ear_y) + self.ear_out)
        return x, self.ear_y, torch.full_like(self.ear_y, -0.10)

    def width_at(self, y: Tensor) -> Tensor:
        """Return the ratio of the width of the head at height y to that of its ellipsoid."""
        y = y.clamp(-1.0, 1.0)
        value = y * self.profile[4] + self.profile[3]
        for order in (2, 1, 0):
            value = torch.addcmul(self.profile[order], value, y)
        return value

    def width_slope_at(self, y: Tensor) -> Tensor:
        """Return the derivative of `width_at`."""
        y = y.clamp(-1.0, 1.0)
        value = y * (4.0 * self.profile[4]) + 3.0 * self.profile[3]
        for order in (2, 1):
            value = torch.addcmul(order * self.profile[order], value, y)
        return value

    def depth_at(self, x: Tensor, y: Tensor) -> Tensor:
        """Return z of the surface of the face at (x, y)."""
        half_height = torch.where(y > 0, self.chin, self.crown)
        side = x / (self.half_width * self.width_at(y))
        return self.half_depth * (1.0 - side * side - (y / half_height) ** 2).clamp(min=0.02).sqrt()


@lru_cache(maxsize=1)
def _solve_profile() -> tuple[tuple[float, ...], ...]:
    """Return the matrix [5, 5] that turns the widths at `_PROFILE_HEIGHTS` into coefficients of the profile."""
    powers = np.vander(_PROFILE_HEIGHTS, 5, increasing=True)
    return tuple(tuple(float(value) for value in row) for row in np.linalg.inv(powers).T)


def build_head(identity: ParameterColumns, attributes: ParameterColumns) -> HeadShape:
    """Build the shape of the head; an open mouth lengthens it."""
    long, open_ = identity["face_length"], attributes["mouth_open"]
    half_width = 0.735 + 0.062 * identity["head_width"] - 0.015 * long
    widths = torch.cat(
        (
            torch.full_like(long, 1.14),
            1.07 + 0.055 * identity["forehead_width"],
            1.0 + 0.055 * identity["cheek_width"] + 0.02 * identity["cheek_fullness"],
            0.95 + 0.135 * identity["jaw_width"] + 0.05 * identity["cheek_fullness"],
            0.86 + 0.10 * identity["jaw_width"] + 0.17 * identity["chin_width"],
        ),
        dim=1,
    )[:, :, 0]
    coefficients = (widths[:, :, None] * constant_like(_solve_profile(), widths)).sum(dim=1)
    return HeadShape(
        half_width=half_width,
        crown=1.0 - 0.02 * long,
        chin=1.0 + 0.085 * long + 0.10 * open_,
        half_depth=0.86 + 0.02 * identity["head_width"],
        profile=tuple(coefficients[:, order, None, None] for order in range(5)),
        eye_x=0.305 + 0.036 * identity["eye_spacing"] + 0.012 * identity["eye_size"],
        eye_y=0.02 - 0.045 * identity["eye_height"],
        eye_half_width=0.198 + 0.027 * identity["eye_size"],
        nose_y=0.385 + 0.06 * identity["nose_length"] + 0.02 * long - 0.02 * identity["eye_height"],
        ear_y=0.15 - 0.045 * identity["eye_height"],
        ear_out=0.03 + 0.025 * identity["ear_flare"],
        mouth_y=0.635 + 0.03 * identity["nose_length"] + 0.035 * long - 0.03 * identity["mouth_height"],
    )


@dataclass(frozen=True)
class HeadHit:
    """Rays that meet the head: point and normal (not unit) in the head frame, depth, and distance inside."""

    point: Vector
    normal: Vector
    t: Tensor
    inside: Tensor


def intersect_head(shape: HeadShape, pose: Pose, window: PixelWindow) -> HeadHit:
    """Intersect the rays of all pixels with the head; `inside` is the signed distance from the outline, > 0 inside."""
    origin = pose.rays(window.u, window.v)
    squares = tuple(1.0 / (axis * axis) for axis in (shape.half_width, shape.crown, shape.half_depth, shape.chin))
    # An intersection without the profile gives the height; it is exact enough to evaluate the profile there.
    first = intersect_ellipsoid(origin, pose.toward, (squares[0], squares[1], squares[2]))
    y = torch.addcmul(origin[1], first.t, pose.toward[1])
    width = shape.width_at(y)
    inverse_x = squares[0] / (width * width)
    inverse_y = squares[1] + (squares[3] - squares[1]) * is_above(y)
    hit = intersect_ellipsoid(origin, pose.toward, (inverse_x, inverse_y, squares[2]))
    x, y, z = along_ray(origin, pose.toward, hit.t)
    nx = x * inverse_x
    normal = (nx, y * inverse_y - nx * x * shape.width_slope_at(y) / width, z * squares[2])
    return HeadHit((x, y, z), normal, hit.t, (1.0 - hit.reach).mul_(0.85))
