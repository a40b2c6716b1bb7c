"""The bare face: its relief, the colours and marks of its skin, and the light on them.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.canvas import Canvas
from fusionray.data.synthetic.graphics.device import is_needed
from fusionray.data.synthetic.graphics.geometry import Vector, bump, edge_coverage, length, normalise, smoothstep
from fusionray.data.synthetic.graphics.light import light_skin, specular_skin
from fusionray.data.synthetic.graphics.palette import constant
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow
from fusionray.data.synthetic.layers.relief import Relief
from fusionray.data.synthetic.shapes.head import HeadHit
from fusionray.data.synthetic.shapes.person import PersonModel


def shade_skin(person: PersonModel, hit: HeadHit, relief: Relief, window: PixelWindow) -> Canvas:
    """Draw the bare face: relief, soft shadow of the nose, flush, marks and highlights."""
    unit = normalise(hit.normal)
    side = hit.point[0].sign()
    front = unit[2].clamp(min=0.0)
    slope_x = relief.slope_x * front
    normal = normalise(
        (
            torch.addcmul(unit[0], side, slope_x, value=-1.0),
            torch.addcmul(unit[1], relief.slope_y, front, value=-1.0),
            unit[2],
        )
    )
    openness = relief.openness.mul_(_nose_shadow(person, hit.point).neg_().add_(1.0))
    received = light_skin(normal, person.light, openness)
    albedo = _colour_skin(person, hit.point)
    _mark_skin(person, hit.point, window, albedo)
    gloss = specular_skin(normal, person.light, 0.16).mul_(openness)
    colour = (albedo * received).addcmul_(0.55 * person.light.direct, gloss[:, None])
    return Canvas.assemble(
        window,
        colour=colour,
        light=received,
        x=hit.point[0],
        y=hit.point[1],
        visible=front,
        normal=normal,
        albedo=albedo,
        t=hit.t,
    )


def _nose_shadow(person: PersonModel, point: Vector) -> Tensor:
    """Return the share of light that the nose blocks, on the side away from the light."""
    toward, nose_y = person.light.toward, person.head.nose_y
    forward = toward[2].clamp(min=0.35)
    x = -0.15 * (toward[0] / forward).clamp(-1.6, 1.6)
    y = nose_y + 0.05 - 0.13 * (toward[1] / forward).clamp(-1.2, 0.5)
    return bump(point[0], point[1], (x, y), (0.24 + 0.3 * x.abs(), 0.16)).mul_(0.42)


def _colour_skin(person: PersonModel, point: Vector) -> Tensor:
    x, y = point[0].abs(), point[1]
    head, skin, identity = person.head, person.skin, person.identity
    flush = bump(x, y, (0.42, 0.30), (0.36, 0.30))
    flush.add_(bump(x, y, (0.0, head.nose_y - 0.06), (0.26, 0.26)), alpha=0.8).mul_(
        0.10 + 0.55 * identity["skin_flush"]
    )
    lids = bump(x, y, (head.eye_x, head.eye_y + 0.03), (0.30, 0.17)).mul_(-0.10 - 0.20 * identity["age"]).add_(1.0)
    redder = skin * constant(skin, 1.0, 0.76, 0.75) - skin
    return (flush[:, None] * redder).add_(skin).mul_(lids[:, None])


def _mark_skin(person: PersonModel, point: Vector, window: PixelWindow, albedo: Tensor) -> None:
    """Paint freckles and the mole into the colour of the skin, in place.

    Freckles are the peaks of crossed waves; their phase differs by person.
    """
    identity, edge_width = person.identity, window.edge_width
    if not is_needed(identity["freckles"] + identity["mole_size"] > 0):
        return
    x, y = point[0], point[1]
    phase = 7.0 * identity["mole_x"] + 3.0 * identity["mole_y"]
    wave = torch.sin((97.0 * x).add_(y, alpha=37.0).add_(phase))
    wave.add_(torch.sin((83.0 * y).add_(x, alpha=-41.0).add_(2.3 * phase)))
    wave.add_(torch.sin((61.0 * x).add_(y, alpha=59.0).add_(1.7 * phase)))
    zone = bump(x.abs(), y, (0.26, 0.26), (0.50, 0.34)).mul_(0.95 * identity["freckles"].sqrt())
    freckles = smoothstep(wave, 0.9, 1.7).mul_(zone).mul_((0.028 / edge_width).clamp(max=1.0))
    away = length(x - 0.46 * identity["mole_x"], y - 0.40 - 0.38 * identity["mole_y"])
    mole = edge_coverage(away.neg_().add_(0.026 + 0.022 * identity["mole_size"]), edge_width.clamp(min=0.012))
    mole.mul_((identity["mole_size"] > 0).to(mole.dtype))
    albedo.lerp_(person.skin * constant(x, 0.74, 0.64, 0.58), freckles[:, None])
    albedo.lerp_(person.skin * constant(x, 0.34, 0.27, 0.25), mole[:, None])
