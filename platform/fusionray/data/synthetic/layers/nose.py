"""The nose: four ellipsoids (bridge, tip, two wings) that blend into the face.

Legend: planes [N, H, W]; row scalars [N, 1, 1]; of the four bodies [N, 4, H, W]; vectors are tuples in the head frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.canvas import Canvas
from fusionray.data.synthetic.graphics.geometry import (
    Vector,
    along_ray,
    bump,
    dot,
    edge_coverage,
    intersect_ellipsoid,
    normalise,
)
from fusionray.data.synthetic.graphics.light import light_skin, specular_skin
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow
from fusionray.data.synthetic.shapes.person import PersonModel

# Bodies blend over about 1 / sharpness head units of depth.
_SHARPNESS = 38.0


@dataclass(frozen=True)
class NoseHit:
    """The share of the nose in each pixel, and point and normal (not unit) of the blended surface."""

    alpha: Tensor
    point: Vector
    normal: Vector


def paint_nose(canvas: Canvas, person: PersonModel, outline: Tensor) -> None:
    """Paint the nose over the features that it hides: lit skin, nostrils and highlights.

    `canvas` must have all planes (`part(whole=True)`). `outline` is the coverage of the head; the part of the nose
    outside it is added in place.
    """
    nose, light = person.nose, person.light
    hit = intersect_nose(person, canvas.window, canvas.t, canvas.normal)
    normal = normalise(hit.normal)
    openness = (normal[1] - 0.1).clamp_(0.0, 1.0).mul_(-0.55).add_(1.0)
    gloss = specular_skin(normal, light, 0.30)
    colour = light_skin(normal, light, openness).mul_(canvas.albedo)
    colour.addcmul_(0.55 * light.direct, gloss[:, None])
    place = (0.56 * nose.half_width, person.head.nose_y + 0.045)
    nostril = bump(hit.point[0].abs(), hit.point[1], place, (0.50 * nose.half_width, 0.040)).sqrt_()
    colour.mul_(nostril.mul_(-0.80).add_(1.0)[:, None])
    canvas.colour.lerp_(colour, hit.alpha[:, None])
    canvas.window.write(outline, torch.maximum(canvas.window.read(outline), hit.alpha))


def intersect_nose(person: PersonModel, window: PixelWindow, head_t: Tensor, head_normal: Vector) -> NoseHit:
    """Intersect the rays with the nose; `head_t` and `head_normal` are depth and unit normal of the face there.

    A soft maximum blends the depths; its gradient is the same blend of the gradients, so normals use the same weights.
    The lean is a shear, which keeps rays straight.
    """
    nose = person.nose
    rays = person.pose.rays(window.u, window.v)
    along = (person.pose.toward[0][:, None], person.pose.toward[1][:, None], person.pose.toward[2][:, None])
    y = rays[1][:, None] - nose.centre[1]
    z = (rays[2][:, None] - nose.centre[2]).addcmul_(nose.lean, y, value=-1.0)
    local = (rays[0][:, None] - nose.centre[0], y, z)
    toward = (along[0], along[1], along[2] - nose.lean * along[1])
    inverse = (1.0 / nose.axes[0].square(), 1.0 / nose.axes[1].square(), 1.0 / nose.axes[2].square())
    hit = intersect_ellipsoid(local, toward, inverse)
    nx, ny, nz = along_ray(local, toward, hit.t)
    nx.mul_(inverse[0])
    nz.mul_(inverse[2])
    ny.mul_(inverse[1]).addcmul_(nose.lean, nz, value=-1.0)
    weight = (hit.t - head_t[:, None]).mul_(_SHARPNESS).clamp_(max=18.0).exp_()
    weight.mul_(edge_coverage((1.0 - hit.reach).mul_(nose.axes[0]), window.edge_width[:, None]))
    total = weight.sum(dim=1).add_(1.0)
    depth = (weight * hit.t).sum(dim=1).add_(head_t).div_(total)
    weight.mul_(dot((nx, ny, nz), (nx, ny, nz)).add_(1e-12).rsqrt_())
    x, y, z = ((part * weight).sum(dim=1).add_(own) for part, own in zip((nx, ny, nz), head_normal, strict=True))
    alpha = total.reciprocal_().neg_().add_(1.0).clamp_(0.0, 1.0)
    return NoseHit(alpha, along_ray(rays, person.pose.toward, depth), (x, y, z))
