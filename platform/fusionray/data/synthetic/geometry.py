"""Where things are: the pose of the head, windows of output pixels, rays that meet ellipsoids, soft edges.

Frames, all with x to the image right and y DOWN:
  picture  unit square of the whole picture
  screen   the picture shifted, unrolled and scaled, so that the head's centre is 0 and its half height about 1
  head     fixed to the skull, z from its centre out through the face; screen = rotation(pitch, yaw) @ head
Legend: a plane is [N, H, W]; a row scalar is [N, 1, 1]; a vector is a tuple (x, y, z) of either.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.parameters import Columns

Vector = tuple[Tensor, Tensor, Tensor]

_HEAD_SCALE = 0.285
_HEAD_CENTRE = (0.5, 0.475)
_SOFTEST = 0.035


@dataclass(frozen=True)
class Pose:
    """The head's place and turn; `right`, `down`, `toward` are the screen's axes in the head frame."""

    right: Vector
    down: Vector
    toward: Vector
    picture_to_screen_N23: Tensor
    softness: Tensor

    def to_head(self, vector: Vector) -> Vector:
        """Turn a screen vector into the head frame."""
        u, v, t = vector
        right, down, toward = self.right, self.down, self.toward
        return (
            u * right[0] + v * down[0] + t * toward[0],
            u * right[1] + v * down[1] + t * toward[1],
            u * right[2] + v * down[2] + t * toward[2],
        )

    def to_screen(self, point: Vector) -> Vector:
        """Turn a head point into the screen frame (u, v, depth towards the viewer)."""
        return dot(self.right, point), dot(self.down, point), dot(self.toward, point)

    def to_picture(self, u: Tensor, v: Tensor) -> Tensor:
        """Turn screen coordinates [N, 1, 1] into picture unit coordinates [N, 2]."""
        m = invert(self.picture_to_screen_N23)
        return m[:, :, 0] * u[:, 0] + m[:, :, 1] * v[:, 0] + m[:, :, 2]


def build_pose(attributes: Columns) -> Pose:
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


def compose(outer_N23: Tensor, inner_N23: Tensor) -> Tensor:
    """Return the affine map that applies `inner` first, then `outer`."""
    linear = outer_N23[:, :, :2] @ inner_N23
    return torch.cat((linear[:, :, :2], linear[:, :, 2:] + outer_N23[:, :, 2:]), dim=2)


def invert(affine_N23: Tensor) -> Tensor:
    """Invert affine maps [N, 2, 3]."""
    (a, b, c), (d, e, f) = affine_N23[:, 0].unbind(1), affine_N23[:, 1].unbind(1)
    determinant = a * e - b * d
    rows = (e, -b, b * f - e * c, -d, a, d * c - a * f)
    return torch.stack(rows, dim=1).view(-1, 2, 3) / determinant[:, None, None]


class Region:
    """A window of the output: one size for all rows, one place for each; knows its pixels' screen coordinates.

    `u`, `v` are planes of screen coordinates; `step` [N, 1, 1] is the width of a pixel in screen units, widened by
    defocus, over which edges are softened.
    """

    def __init__(self, output_to_screen_N23: Tensor, softness: Tensor, size: int,
                 left: Tensor, top: Tensor, width: int, height: int) -> None:
        self.size, self.width, self.height = size, width, height
        self._map, self._softness, self._left, self._top = output_to_screen_N23, softness, left, top
        device = left.device
        x = (left + torch.arange(width, device=device)[None, None, :] + 0.5) / size
        y = (top + torch.arange(height, device=device)[None, :, None] + 0.5) / size
        m = output_to_screen_N23[:, :, :, None, None]
        self.u = m[:, 0, 0] * x + (m[:, 0, 1] * y + m[:, 0, 2])
        self.v = m[:, 1, 0] * x + (m[:, 1, 1] * y + m[:, 1, 2])
        determinant = m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0]
        self.step = (determinant.abs() / size**2 + softness * softness).sqrt()
        self._index: Tensor | None = None

    def window(self, centre_u: Tensor, centre_v: Tensor, half_u: Tensor, half_v: Tensor) -> Region:
        """Return the part of this region that holds a screen ellipse; as large as the largest row needs.

        Layers must be transparent outside their own ellipse, because a row's window may be larger than it.
        """
        inverse = invert(self._map)[:, :, :, None, None]
        margin = 1.5 * self.step
        box = []
        for axis, whole in ((0, self.width), (1, self.height)):
            start = self._left if axis == 0 else self._top
            middle = inverse[:, axis, 0] * centre_u + inverse[:, axis, 1] * centre_v + inverse[:, axis, 2]
            half = ((inverse[:, axis, 0] * (half_u + margin)) ** 2 + (inverse[:, axis, 1] * (half_v + margin)) ** 2).sqrt()
            extent = min(whole, max(1, int((2.0 * half * self.size).max().ceil()) + 1))
            first = (middle * self.size - 0.5 * extent).round().to(torch.int64)
            box.append((torch.minimum(torch.maximum(first, start), start + (whole - extent)), extent))
        (left, width), (top, height) = box
        return self._part(left, top, width, height)

    def beyond(self, direction_u: Tensor, direction_v: Tensor, start: Tensor) -> Region:
        """Return the lower rows of this whole region, from the first that any row needs: u a + v b > start."""
        m = self._map[:, :, :, None, None]
        by_x = direction_u * m[:, 0, 0] + direction_v * m[:, 1, 0]
        by_y = direction_u * m[:, 0, 1] + direction_v * m[:, 1, 1]
        rest = direction_u * m[:, 0, 2] + direction_v * m[:, 1, 2] + by_x.clamp(min=0.0) + 1.5 * self.step
        # Where the view stands on its head the lower rows are not the lower body: keep all of them.
        first = torch.where(by_y > 0, (start - rest) / by_y.clamp(min=1e-6) * self.size, torch.zeros_like(rest))
        skipped = min(self.height - 1, max(0, int(first.min().floor())))
        return self._part(self._left, self._top + skipped, self.width, self.height - skipped)

    def _part(self, left: Tensor, top: Tensor, width: int, height: int) -> Region:
        part = Region(self._map, self._softness, self.size, left, top, width, height)
        if width < self.width or height < self.height:
            row = top - self._top + torch.arange(height, device=top.device)[None, :, None]
            column = left - self._left + torch.arange(width, device=left.device)[None, None, :]
            part._index = (row * self.width + column).flatten(1)
        return part

    def read(self, planes: Tensor) -> Tensor:
        """Cut this window out of planes [N, ..., H, W] of the region it was made from."""
        if self._index is None:
            return planes
        flat = planes.flatten(-2)
        index = self._index if planes.ndim == 3 else self._index[:, None, :].expand(-1, planes.shape[1], -1)
        return flat.gather(-1, index).unflatten(-1, (self.height, self.width))

    def write(self, planes: Tensor, values: Tensor) -> Tensor:
        """Return planes [N, ..., H, W] of the region this was made from, with this window replaced."""
        if self._index is None:
            return values
        flat = planes.flatten(-2)
        index = self._index if planes.ndim == 3 else self._index[:, None, :].expand(-1, planes.shape[1], -1)
        return flat.scatter(-1, index, values.flatten(-2)).view_as(planes)


def whole_region(pose: Pose, view_N23: Tensor | None, size: int) -> Region:
    """Return the region of all output pixels, seen through a view (output unit square -> picture unit square)."""
    affine = pose.picture_to_screen_N23 if view_N23 is None else compose(pose.picture_to_screen_N23, view_N23)
    corner = torch.zeros_like(pose.softness, dtype=torch.int64)
    return Region(affine, pose.softness, size, corner, corner, size, size)


@dataclass(frozen=True)
class Hit:
    """Where rays meet an ellipsoid: `t` towards the viewer, and `reach`, 1 on the silhouette and < 1 inside it."""

    t: Tensor
    reach: Tensor


def cast(origin: Vector, toward: Vector, inverse_squares: Vector) -> Hit:
    """Meet rays origin + t * toward with the ellipsoid sum(p_i^2 * inverse_squares_i) = 1 around 0.

    A ray that misses gets the point where it passes nearest.
    """
    ox, oy, oz = origin
    wx, wy, wz = (component * weight for component, weight in zip(toward, inverse_squares, strict=True))
    q_dd = toward[0] * wx + toward[1] * wy + toward[2] * wz
    q_od = ox * wx + oy * wy + oz * wz
    q_oo = ox * ox * inverse_squares[0] + oy * oy * inverse_squares[1] + oz * oz * inverse_squares[2]
    reach = (q_oo - q_od * q_od / q_dd).clamp(min=0.0)
    depth = ((1.0 - reach).clamp(min=0.0) * q_dd).sqrt()
    return Hit((depth - q_od) / q_dd, reach.sqrt())


def dot(a: Vector, b: Vector) -> Tensor:
    """Return the scalar product of two vectors."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def normalise(vector: Vector) -> Vector:
    """Scale a vector to length 1."""
    inverse = (vector[0] * vector[0] + vector[1] * vector[1] + vector[2] * vector[2] + 1e-12).rsqrt()
    return vector[0] * inverse, vector[1] * inverse, vector[2] * inverse


def cover(distance: Tensor, step: Tensor) -> Tensor:
    """Return the share of a pixel inside an edge: 1 where `distance` is far positive, softened over `step`."""
    return (distance / step + 0.5).clamp(0.0, 1.0)


def stroke(distance: Tensor, half_width: Tensor | float, step: Tensor) -> Tensor:
    """Return the share of a pixel under a line, right also for lines thinner than a pixel."""
    return ((distance + half_width) / step + 0.5).clamp(0.0, 1.0) - ((distance - half_width) / step + 0.5).clamp(0.0, 1.0)


def bump(x: Tensor, y: Tensor, centre: tuple[Tensor | float, Tensor | float],
         spread: tuple[Tensor | float, Tensor | float]) -> Tensor:
    """Return (1 - q)^2 for q < 1 and 0 beyond, q the squared elliptic distance: a hill with an end."""
    dx, dy = (x - centre[0]) / spread[0], (y - centre[1]) / spread[1]
    hill = (1.0 - dx * dx - dy * dy).clamp(min=0.0)
    return hill * hill


def smooth(value: Tensor, low: float, high: float) -> Tensor:
    """Return the smooth step from 0 at `low` to 1 at `high`."""
    x = ((value - low) / (high - low)).clamp(0.0, 1.0)
    return x * x * (3.0 - 2.0 * x)
