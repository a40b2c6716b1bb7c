"""The nose: a bridge, a tip and two wings, solid bodies that stick out of the face and blend into it.

Legend: planes [N, H, W]; row scalars [N, 1, 1]; vectors are tuples in the head frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.geometry import Pose, Region, Vector, bump, cast, cover, normalise
from fusionray.data.synthetic.head import HeadHit, HeadShape
from fusionray.data.synthetic.light import Light, illuminate, shine, skin_wrap
from fusionray.data.synthetic.parameters import Columns

# Blend sharpness: bodies melt together over about 1 / sharpness head units of depth.
_SHARPNESS = 38.0


@dataclass(frozen=True)
class Blob:
    """An ellipsoid: centre, half axes, and a lean of its upper end backwards (dz per dy)."""

    centre: Vector
    axes: Vector
    lean: Tensor


@dataclass(frozen=True)
class NoseShape:
    """The bodies of the nose and the places that others need."""

    blobs: tuple[Blob, ...]
    tip: Vector
    half_width: Tensor


def build_nose(identity: Columns, shape: HeadShape) -> NoseShape:
    """Build the nose on the face's surface."""
    zero = torch.zeros_like(shape.nose_y)
    base = shape.depth_at(zero, shape.nose_y)
    out = 0.150 + 0.055 * identity["nose_projection"]
    width = 0.118 + 0.034 * identity["nose_width"]
    tip_radius = 0.088 + 0.022 * identity["nose_tip"] + 0.012 * identity["nose_width"]
    tip = Blob((zero, shape.nose_y - 0.03, base + out - 0.5 * tip_radius),
               (tip_radius, 0.88 * tip_radius, 0.95 * tip_radius), zero)
    root_y = shape.eye_y - 0.10
    root_z = shape.depth_at(zero, root_y)
    middle_y = 0.5 * (root_y + shape.nose_y)
    front_z = base + out - 0.02
    lean = (front_z - root_z - 0.02) / (shape.nose_y - root_y)
    bridge_width = 0.072 + 0.022 * identity["nose_bridge"]
    bridge = Blob((zero, middle_y, 0.5 * (root_z + 0.02 + front_z) - 0.105),
                  (bridge_width, 0.62 * (shape.nose_y - root_y), 0.10 + zero), lean)
    wing = (0.36 * width + 0.030, 0.066 + 0.010 * identity["nose_tip"], 0.095 + zero)
    wings = tuple(Blob((sign * (width - 0.25 * wing[0]), shape.nose_y + 0.005, base + 0.30 * out - 0.02), wing, zero)
                  for sign in (-1.0, 1.0))
    front = (zero, shape.nose_y - 0.03, tip.centre[2] + tip.axes[2])
    return NoseShape((bridge, tip, *wings), front, width)


@dataclass(frozen=True)
class NoseHit:
    """How far each pixel belongs to the nose, and the blended surface there."""

    alpha: Tensor
    point: Vector
    normal: Vector


def paint_nose(canvas: Canvas, region: Region, nose: NoseShape, shape: HeadShape, head: HeadHit, pose: Pose,
               light: Light) -> None:
    """Paint the nose over the features that it hides: lit skin, nostrils, its own shine."""
    part = canvas.part(region)
    hit = cast_nose(nose, region.read(head.t), part.normal, pose, region)
    normal = normalise(hit.normal)
    x, y = hit.point[0].abs(), hit.point[1]
    under = (normal[1] - 0.1).clamp(0.0, 1.0)
    openness = 1.0 - 0.55 * under
    lit = illuminate(normal, light.head, light.head_up, light, openness, skin_wrap(x))
    gloss = 0.10 * shine(normal, light.head_half, 3) + 0.30 * shine(normal, light.head_half, 5)
    colour = part.albedo * lit + light.direct_N3 * (0.55 * gloss)[:, None]
    nostril = bump(x, y, (0.56 * nose.half_width, shape.nose_y + 0.045), (0.50 * nose.half_width, 0.040)).sqrt()
    colour = colour * (1.0 - 0.80 * nostril)[:, None]
    part.colour = torch.lerp(part.colour, colour, hit.alpha[:, None])
    part.beyond = hit.alpha
    canvas.put(part)


def cast_nose(nose: NoseShape, head_t: Tensor, head_normal: Vector, pose: Pose, region: Region) -> NoseHit:
    """Meet the rays with the nose; `head_t` and `head_normal` are the face's depth and unit normal in this region.

    Depths are blended by a soft maximum, whose gradient is the same blend of gradients: one weight serves both.
    """
    zero = torch.zeros_like(region.u[:, :1, :1])
    origin = pose.to_head((region.u, region.v, zero))
    total = torch.ones_like(head_t)
    depth_sum = head_t.clone()
    sums = [component.clone() for component in head_normal]
    for blob in nose.blobs:
        t, edge, normal = _cast_blob(blob, origin, pose)
        weight = cover(edge, region.step) * torch.exp((_SHARPNESS * (t - head_t)).clamp(max=18.0))
        total = total + weight
        depth_sum = depth_sum + weight * t
        sums = [value + weight * component for value, component in zip(sums, normal, strict=True)]
    t = depth_sum / total
    point = tuple(start + t * along for start, along in zip(origin, pose.toward, strict=True))
    return NoseHit((1.0 - 1.0 / total).clamp(0.0, 1.0), (point[0], point[1], point[2]), (sums[0], sums[1], sums[2]))


def _cast_blob(blob: Blob, origin: Vector, pose: Pose) -> tuple[Tensor, Tensor, Vector]:
    """Return depth, signed distance from the outline and unit normal. The lean is a shear, so rays stay straight."""
    oy = origin[1] - blob.centre[1]
    local = (origin[0] - blob.centre[0], oy, origin[2] - blob.centre[2] - blob.lean * oy)
    toward = (pose.toward[0], pose.toward[1], pose.toward[2] - blob.lean * pose.toward[1])
    squares = tuple(1.0 / (axis * axis) for axis in blob.axes)
    inverse = (squares[0], squares[1], squares[2])
    hit = cast(local, toward, inverse)
    x, y, z = ((start + hit.t * along) * weight for start, along, weight in zip(local, toward, inverse, strict=True))
    y = y - blob.lean * z
    length = (x * x + y * y + z * z + 1e-12).rsqrt()
    return hit.t, (1.0 - hit.reach) * blob.axes[0], (x * length, y * length, z * length)
