"""Ears: tilted discs at the sides of the head, visible where they are in front of it or beside it.

Legend: planes [N, H, W]; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.geometry import (
    Vector,
    along_ray,
    bump,
    edge_coverage,
    intersect_ellipsoid,
    normalise,
    smoothstep,
)
from fusionray.data.synthetic.graphics.light import light_skin
from fusionray.data.synthetic.graphics.palette import constant
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow
from fusionray.data.synthetic.shapes.person import PersonModel


@dataclass(frozen=True)
class EarLayer:
    """One ear in its window: colour [N, 3, H, W], coverage and depth [N, H, W]."""

    colour: Tensor
    alpha: Tensor
    t: Tensor


def draw_ear(person: PersonModel, window: PixelWindow, side: float) -> EarLayer:
    """Draw one ear; side = -1 for the ear at the image left. `ear_flare` tilts its disc forwards."""
    x, y, z = person.pose.rays(window.u, window.v)
    centre = person.head.ear_centre(side)
    angle = side * (0.55 + 0.22 * person.identity["ear_flare"])
    cosine, sine = angle.cos(), angle.sin()
    local = _turn((x - centre[0], y - centre[1], z - centre[2]), cosine, sine)
    toward = _turn(person.pose.toward, cosine, sine)
    size = 1.0 + 0.16 * person.identity["ear_size"]
    axes = (0.055 * size, 0.235 * size, 0.125 * size)
    # The disc gets narrower towards the lobe.
    narrow = (local[1] / axes[1]).clamp_(-0.6, 1.0).mul_(0.55).add_(1.0).square_()
    depth = narrow.mul_(0.35).add_(0.85).div_(axes[2].square())
    inverse = (1.0 / axes[0].square(), 1.0 / axes[1].square(), depth)
    hit = intersect_ellipsoid(local, toward, inverse)
    px, py, pz = along_ray(local, toward, hit.t)
    across, along = pz / axes[2], py / axes[1]
    hollow = bump(across, along, (0.12, -0.05), (0.62, 0.60))
    rim = bump(across, along, (-0.10, -0.10), (0.95, 0.92)).sub_(hollow, alpha=1.4).clamp_(-1.0, 1.0)
    unit = normalise((px.mul_(inverse[0]), py.mul_(inverse[1]), pz.mul_(inverse[2])))
    colour = light_skin(_turn(unit, cosine, -sine), person.light, hollow.mul_(-0.55).add_(0.88))
    colour.mul_(person.skin * constant(px, 1.0, 0.90, 0.89)).mul_(rim.mul_(0.12).add_(1.0)[:, None])
    return EarLayer(colour, edge_coverage((1.0 - hit.reach).mul_(0.8 * axes[2]), window.edge_width), hit.t)


def ear_visibility(ear: EarLayer, head_t: Tensor, head_alpha: Tensor) -> Tensor:
    """Return the coverage of the ear where it is in front of the head or beside it."""
    before = smoothstep(ear.t - head_t, -0.015, 0.015)
    return ear.alpha * torch.maximum(1.0 - head_alpha, before)


def _turn(vector: Vector, cosine: Tensor, sine: Tensor) -> Vector:
    return vector[0] * cosine + vector[2] * sine, vector[1], vector[2] * cosine - vector[0] * sine
