"""The nose, drawn as solid bodies that stick out of the face and blend into it.

Legend: planes [N, H, W]; row scalars [N, 1, 1]; of the four bodies [N, 4, H, W]; vectors are tuples in the head frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.figure import Figure
from fusionray.data.synthetic.geometry import Vector, bump, cast, cover, dot, normalise, travel
from fusionray.data.synthetic.light import gloss_skin, light_skin
from fusionray.data.synthetic.region import Region

# Blend sharpness: bodies melt together over about 1 / sharpness head units of depth.
_SHARPNESS = 38.0


@dataclass(frozen=True)
class NoseHit:
    """How far each pixel belongs to the nose, and the blended surface there (its normal not unit)."""

    alpha: Tensor
    point: Vector
    normal: Vector


def paint_nose(canvas: Canvas, figure: Figure, outline: Tensor) -> None:
    """Paint the nose over the features that it hides: lit skin, nostrils, its own shine.

    The canvas has all its planes. `outline` is the coverage of the head; what sticks out of it is added in place.
    """
    nose, light = figure.nose, figure.light
    hit = cast_nose(figure, canvas.region, canvas.t, canvas.normal)
    normal = normalise(hit.normal)
    openness = (normal[1] - 0.1).clamp_(0.0, 1.0).mul_(-0.55).add_(1.0)
    gloss = gloss_skin(normal, light, 0.30)
    colour = light_skin(normal, light, openness).mul_(canvas.albedo)
    colour.addcmul_(0.55 * light.direct, gloss[:, None])
    place = (0.56 * nose.half_width, figure.head.nose_y + 0.045)
    nostril = bump(hit.point[0].abs(), hit.point[1], place, (0.50 * nose.half_width, 0.040)).sqrt_()
    colour.mul_(nostril.mul_(-0.80).add_(1.0)[:, None])
    canvas.colour.lerp_(colour, hit.alpha[:, None])
    canvas.region.write(outline, torch.maximum(canvas.region.read(outline), hit.alpha))


def cast_nose(figure: Figure, region: Region, head_t: Tensor, head_normal: Vector) -> NoseHit:
    """Meet the rays with the nose; `head_t` and `head_normal` are the face's depth and unit normal in this region.

    Depths are blended by a soft maximum, whose gradient is the same blend of gradients: one weight serves both. The
    lean is a shear, under which rays stay straight.
    """
    nose = figure.nose
    rays = figure.pose.rays(region.u, region.v)
    along = (figure.pose.toward[0][:, None], figure.pose.toward[1][:, None], figure.pose.toward[2][:, None])
    y = rays[1][:, None] - nose.centre[1]
    z = (rays[2][:, None] - nose.centre[2]).addcmul_(nose.lean, y, value=-1.0)
    local = (rays[0][:, None] - nose.centre[0], y, z)
    toward = (along[0], along[1], along[2] - nose.lean * along[1])
    inverse = (1.0 / nose.axes[0].square(), 1.0 / nose.axes[1].square(), 1.0 / nose.axes[2].square())
    hit = cast(local, toward, inverse)
    nx, ny, nz = travel(local, toward, hit.t)
    nx.mul_(inverse[0])
    nz.mul_(inverse[2])
    ny.mul_(inverse[1]).addcmul_(nose.lean, nz, value=-1.0)
    weight = (hit.t - head_t[:, None]).mul_(_SHARPNESS).clamp_(max=18.0).exp_()
    weight.mul_(cover((1.0 - hit.reach).mul_(nose.axes[0]), region.step[:, None]))
    total = weight.sum(dim=1).add_(1.0)
    depth = (weight * hit.t).sum(dim=1).add_(head_t).div_(total)
    weight.mul_(dot((nx, ny, nz), (nx, ny, nz)).add_(1e-12).rsqrt_())
    x, y, z = ((part * weight).sum(dim=1).add_(own) for part, own in zip((nx, ny, nz), head_normal, strict=True))
    alpha = total.reciprocal_().neg_().add_(1.0).clamp_(0.0, 1.0)
    return NoseHit(alpha, travel(rays, figure.pose.toward, depth), (x, y, z))
