"""The pose of the head, rays and ellipsoids, and the profiles from which soft edges are made.

Frames, all with x to the image right and y DOWN:
  picture  unit square of the whole picture
  screen   the picture shifted, rotated and scaled: the centre of the head is 0, its half height about 1, its roll 0
  head     fixed to the skull, z from its centre through the face; screen = rotation(pitch, yaw) @ head
Legend: a plane is [N, H, W]; a row scalar is [N, 1, 1]; a vector is a tuple (x, y, z) of either.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.parameters.definitions import ParameterColumns

Vector = tuple[Tensor, Tensor, Tensor]

_HEAD_SCALE = 0.305
_HEAD_CENTRE = (0.5, 0.48)
_SOFTEST = 0.035


@dataclass(frozen=True)
class Pose:
    """Position and rotation of the head.

    `right`, `down`, `toward` are the screen's axes in the head frame; `picture_to_screen` is an affine map [N, 2, 3];
    `softness` [N, 1, 1] is the width that defocus gives to edges, in screen units.
    """

    right: Vector
    down: Vector
    toward: Vector
    picture_to_screen: Tensor
    softness: Tensor

    def to_head(self, vector: Vector) -> Vector:
        """Rotate a vector from the screen frame to the head frame."""
        u, v, t = vector
        axes = zip(self.right, self.down, self.toward, strict=True)
        x, y, z = (torch.addcmul(torch.addcmul(u * right, v, down), t, toward) for right, down, toward in axes)
        return x, y, z

    def rays(self, u: Tensor, v: Tensor) -> Vector:
        """Return the origins of the rays of screen points, in the head frame; their direction is `toward`."""
        x, y, z = (torch.addcmul(u * right, v, down) for right, down in zip(self.right, self.down, strict=True))
        return x, y, z

    def to_screen(self, point: Vector) -> Vector:
        """Rotate a point from the head frame to the screen frame: u, v, depth towards the viewer."""
        return dot(self.right, point), dot(self.down, point), dot(self.toward, point)

    def to_picture(self, u: Tensor, v: Tensor) -> Tensor:
        """Convert screen coordinates [N, 1, 1] to unit coordinates of the picture [N, 2]."""
        m = invert(self.picture_to_screen)
        return m[:, :, 0] * u[:, 0] + m[:, :, 1] * v[:, 0] + m[:, :, 2]


def build_pose(attributes: ParameterColumns) -> Pose:
    """Build the pose from yaw, pitch, roll (degrees), shift and scale."""
    yaw, pitch, roll = (torch.deg2rad(attributes[name]) for name in ("yaw", "pitch", "roll"))
    zero = torch.zeros_like(yaw)
    right = (yaw.cos(), zero, yaw.sin())
    down = (pitch.sin() * yaw.sin(), pitch.cos(), -pitch.sin() * yaw.cos())
    toward = (-pitch.cos() * yaw.sin(), pitch.sin(), pitch.cos() * yaw.cos())
    scale = _HEAD_SCALE * attributes["scale"]
    cosine, sine = roll.cos() / scale, roll.sin() / scale
    x = _HEAD_CENTRE[0] + attributes["shift_x"]
    y = _HEAD_CENTRE[1] + attributes["shift_y"]
    first = torch.cat((cosine, sine, -(x * cosine + y * sine)), dim=2)
    second = torch.cat((-sine, cosine, x * sine - y * cosine), dim=2)
    return Pose(right, down, toward, torch.cat((first, second), dim=1), _SOFTEST * attributes["defocus"])


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """Return the affine map that applies `inner` first, then `outer`."""
    # Not a matrix product, for which a GPU may take TF32: positions would be off by a tenth of a pixel.
    linear = (outer[:, :, :2, None] * inner[:, None]).sum(dim=2)
    return torch.cat((linear[:, :, :2], linear[:, :, 2:] + outer[:, :, 2:]), dim=2)


def invert(affine: Tensor) -> Tensor:
    """Invert affine maps [N, 2, 3]."""
    (a, b, c), (d, e, f) = affine[:, 0].unbind(1), affine[:, 1].unbind(1)
    determinant = a * e - b * d
    rows = (e, -b, b * f - e * c, -d, a, d * c - a * f)
    return torch.stack(rows, dim=1).view(-1, 2, 3) / determinant[:, None, None]


@dataclass(frozen=True)
class RayHit:
    """Rays that meet an ellipsoid: `t` along the ray; `reach` is 1 on the silhouette, < 1 inside, > 1 outside."""

    t: Tensor
    reach: Tensor


def intersect_ellipsoid(origin: Vector, toward: Vector, inverse_squares: Vector) -> RayHit:
    """Intersect rays origin + t * toward with the ellipsoid sum(p_i^2 * inverse_squares_i) = 1 around 0.

    For a ray that misses it, `t` is the point of closest approach.
    """
    weighted = tuple(component * weight for component, weight in zip(toward, inverse_squares, strict=True))
    q_dd = dot(toward, (weighted[0], weighted[1], weighted[2]))
    q_od = dot(origin, (weighted[0], weighted[1], weighted[2]))
    q_oo = origin[0].square().mul_(inverse_squares[0])
    q_oo = q_oo.addcmul_(origin[1].square(), inverse_squares[1]).addcmul_(origin[2].square(), inverse_squares[2])
    reach = q_oo.addcmul_(q_od, q_od / q_dd, value=-1.0).clamp_(min=0.0)
    depth = (1.0 - reach).clamp_(min=0.0).mul_(q_dd).sqrt_()
    return RayHit(depth.sub_(q_od).div_(q_dd), reach.sqrt_())


def along_ray(origin: Vector, toward: Vector, t: Tensor) -> Vector:
    """Return the points origin + t * toward."""
    x, y, z = (torch.addcmul(start, t, along) for start, along in zip(origin, toward, strict=True))
    return x, y, z


def dot(a: Vector, b: Vector) -> Tensor:
    """Return the scalar product of two vectors."""
    return torch.addcmul(torch.addcmul(a[0] * b[0], a[1], b[1]), a[2], b[2])


def normalise(vector: Vector) -> Vector:
    """Scale a vector to length 1."""
    inverse = dot(vector, vector).add_(1e-12).rsqrt_()
    return vector[0] * inverse, vector[1] * inverse, vector[2] * inverse


def length(x: Tensor, y: Tensor) -> Tensor:
    """Return the length of plane vectors."""
    # torch.hypot takes nearly twice the time to avoid an overflow, which cannot happen here.
    return x.square().addcmul_(y, y).sqrt_()


def is_above(value: Tensor, threshold: float = 0.0) -> Tensor:
    """Return 1 where a plane is above a threshold and 0 elsewhere."""
    # Six times as fast as a comparison and a conversion; the ramp is much narrower than a pixel.
    return (value - threshold).mul_(1e6).clamp_(0.0, 1.0)


def edge_coverage(distance: Tensor, edge_width: Tensor) -> Tensor:
    """Return the share of a pixel inside an edge, in [0, 1]: a ramp of width `edge_width` around `distance` = 0."""
    return (distance / edge_width).add_(0.5).clamp_(0.0, 1.0)


def line_coverage(distance: Tensor, half_width: Tensor | float, edge_width: Tensor) -> Tensor:
    """Return the share of a pixel under a line, in [0, 1]; correct also for lines thinner than a pixel."""
    place, reach = distance / edge_width, half_width / edge_width + 0.5
    return (place + reach).clamp_(0.0, 1.0).sub_((place - reach).add_(1.0).clamp_(0.0, 1.0))


def bump(
    x: Tensor, y: Tensor, centre: tuple[Tensor | float, Tensor | float], spread: tuple[Tensor | float, Tensor | float]
) -> Tensor:
    """Return the bump (1 - q)^2 where q < 1, else 0; q is the squared elliptic distance from the centre."""
    dx, dy = (x - centre[0]).div_(spread[0]), (y - centre[1]).div_(spread[1])
    return dx.square_().addcmul_(dy, dy).neg_().add_(1.0).clamp_(min=0.0).square_()


def ridge(x: Tensor, centre: Tensor | float, spread: Tensor | float) -> Tensor:
    """Return the profile of `bump` in one dimension."""
    return (x - centre).div_(spread).square_().neg_().add_(1.0).clamp_(min=0.0).square_()


def smoothstep(value: Tensor, low: float, high: float) -> Tensor:
    """Return the cubic step from 0 at `low` to 1 at `high`."""
    x = (value - low).mul_(1.0 / (high - low)).clamp_(0.0, 1.0)
    return (x * -2.0).add_(3.0).mul_(x).mul_(x)
