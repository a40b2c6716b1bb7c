"""The head: its shape, where a ray meets it, and where the features sit on it.

Head frame: crown at y = -1, chin near y = +1, face towards +z. Legend: planes [N, H, W], row scalars [N, 1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Pose, Vector, cast, is_above, travel
from fusionray.data.synthetic.parameters import Columns
from fusionray.data.synthetic.region import Region

# Heights at which the outline's width is given; a quartic runs through them.
_PROFILE_HEIGHTS = (-0.92, -0.5, 0.06, 0.6, 0.9)


@dataclass(frozen=True)
class HeadShape:
    """An ellipsoid whose width is multiplied by a quartic over its height, and the places of the features on it."""

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

    def ear_place(self, side: float) -> Vector:
        """Return the middle of an ear in the head frame; side = -1 for the one at the image left."""
        x = side * (self.half_width * self.width_at(self.ear_y) + self.ear_out)
        return x, self.ear_y, torch.full_like(self.ear_y, -0.10)

    def width_at(self, y: Tensor) -> Tensor:
        """Return the factor by which the head is wider at height y than its ellipsoid."""
        y = y.clamp(-1.0, 1.0)
        value = y * self.profile[4] + self.profile[3]
        for order in (2, 1, 0):
            value = torch.addcmul(self.profile[order], value, y)
        return value

    def width_slope_at(self, y: Tensor) -> Tensor:
        """Return the derivative of width_at."""
        y = y.clamp(-1.0, 1.0)
        value = y * (4.0 * self.profile[4]) + 3.0 * self.profile[3]
        for order in (2, 1):
            value = torch.addcmul(order * self.profile[order], value, y)
        return value

    def depth_at(self, x: Tensor, y: Tensor) -> Tensor:
        """Return z of the face's surface over (x, y)."""
        half_height = torch.where(y > 0, self.chin, self.crown)
        side = x / (self.half_width * self.width_at(y))
        return self.half_depth * (1.0 - side * side - (y / half_height) ** 2).clamp(min=0.02).sqrt()


def build_head(identity: Columns, attributes: Columns) -> HeadShape:
    """Build the head's shape; an open mouth lengthens it."""
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
    powers = torch.tensor([[height**order for order in range(5)] for height in _PROFILE_HEIGHTS], dtype=torch.float64)
    solver = torch.linalg.inv(powers).T.to(dtype=widths.dtype, device=widths.device)
    coefficients = (widths[:, :, None] * solver).sum(dim=1)
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
    """Rays met with the head: the point's planes in the head frame, its normal (not unit), depth and outline."""

    point: Vector
    normal: Vector
    t: Tensor
    inside: Tensor


def cast_head(shape: HeadShape, pose: Pose, region: Region) -> HeadHit:
    """Meet every pixel's ray with the head; `inside` is the signed distance from the outline, > 0 inside."""
    origin = pose.rays(region.u, region.v)
    squares = tuple(1.0 / (axis * axis) for axis in (shape.half_width, shape.crown, shape.half_depth, shape.chin))
    # A first meeting without the profile tells the height well enough to look the profile up.
    first = cast(origin, pose.toward, (squares[0], squares[1], squares[2]))
    y = torch.addcmul(origin[1], first.t, pose.toward[1])
    width = shape.width_at(y)
    inverse_x = squares[0] / (width * width)
    inverse_y = squares[1] + (squares[3] - squares[1]) * is_above(y)
    hit = cast(origin, pose.toward, (inverse_x, inverse_y, squares[2]))
    x, y, z = travel(origin, pose.toward, hit.t)
    nx = x * inverse_x
    normal = (nx, y * inverse_y - nx * x * shape.width_slope_at(y) / width, z * squares[2])
    return HeadHit((x, y, z), normal, hit.t, (1.0 - hit.reach).mul_(0.85))
