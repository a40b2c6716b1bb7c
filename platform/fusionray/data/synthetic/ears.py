"""Ears: leaning discs at the sides of the head, seen or hidden by their depth.

Legend: planes [N, H, W]; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Pose, Region, Vector, bump, cast, cover, smooth
from fusionray.data.synthetic.head import HeadShape
from fusionray.data.synthetic.light import Light, illuminate, skin_wrap
from fusionray.data.synthetic.palette import constant
from fusionray.data.synthetic.parameters import Columns


@dataclass(frozen=True)
class EarPaint:
    """One ear in its window: colour [N, 3, h, w], coverage and depth [N, h, w]."""

    colour: Tensor
    alpha: Tensor
    t: Tensor


def ear_centre(identity: Columns, shape: HeadShape, side: float) -> Vector:
    """Return the middle of an ear in the head frame; side = -1 for the one at the image left."""
    y = shape.eye_y + 0.13
    out = 0.03 + 0.025 * identity["ear_flare"]
    return side * (shape.half_width * shape.width_at(y) + out), y, torch.full_like(y, -0.10)


def draw_ear(identity: Columns, shape: HeadShape, pose: Pose, region: Region, light: Light, skin: Tensor,
             side: float) -> EarPaint:
    """Draw one ear. Its disc opens forwards and outwards, the more the more the ears stand off."""
    centre = ear_centre(identity, shape, side)
    size = 1.0 + 0.16 * identity["ear_size"]
    zero = torch.zeros_like(region.u[:, :1, :1])
    origin = pose.to_head((region.u, region.v, zero))
    moved: Vector = (origin[0] - centre[0], origin[1] - centre[1], origin[2] - centre[2])
    angle = side * (0.55 + 0.22 * identity["ear_flare"])
    local, toward = _turn(moved, angle), _turn(pose.toward, angle)
    axes = (0.055 * size, 0.235 * size, 0.125 * size)
    inverse = (1.0 / axes[0] ** 2, 1.0 / axes[1] ** 2, 1.0 / axes[2] ** 2)
    # The disc narrows downwards to the lobe.
    narrow = 1.0 + 0.55 * (local[1] / axes[1]).clamp(-0.6, 1.0)
    inverse = (inverse[0], inverse[1], inverse[2] * (0.85 + 0.35 * narrow * narrow))
    hit = cast(local, toward, inverse)
    x, y, z = (start + hit.t * along for start, along in zip(local, toward, strict=True))
    across, along = z / axes[2], y / axes[1]
    hollow = bump(across, along, (0.12, -0.05), (0.62, 0.60))
    rim = bump(across, along, (-0.10, -0.10), (0.95, 0.92)) - 1.4 * hollow
    nx, ny, nz = x * inverse[0], y * inverse[1], z * inverse[2]
    length = (nx * nx + ny * ny + nz * nz + 1e-12).rsqrt()
    normal = _turn((nx * length, ny * length, nz * length), -angle)
    received = illuminate(normal, light.head, light.head_up, light, 0.88 - 0.55 * hollow, skin_wrap(skin))
    colour = skin * constant(skin, 1.0, 0.90, 0.89) * received * (1.0 + 0.12 * rim.clamp(-1.0, 1.0))[:, None]
    return EarPaint(colour, cover((1.0 - hit.reach) * axes[2] * 0.8, region.step), hit.t)


def ear_visibility(ear: EarPaint, head_t: Tensor, head_alpha: Tensor) -> Tensor:
    """Return the ear's coverage where it lies before the head or beside it."""
    before = smooth(ear.t - head_t, -0.015, 0.015)
    return ear.alpha * torch.maximum(1.0 - head_alpha, before)


def _turn(vector: Vector, angle: Tensor) -> Vector:
    cosine, sine = angle.cos(), angle.sin()
    return vector[0] * cosine + vector[2] * sine, vector[1], vector[2] * cosine - vector[0] * sine
