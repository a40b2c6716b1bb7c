"""The mouth: two lips with a cupid's bow, and an opening with teeth and tongue.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.canvas import Canvas
from fusionray.data.synthetic.graphics.geometry import bump, edge_coverage, is_above, line_coverage, ridge, smoothstep
from fusionray.data.synthetic.graphics.palette import constant, lip_colour
from fusionray.data.synthetic.shapes.person import PersonModel

_TEETH_HEIGHT = 0.075


@dataclass(frozen=True)
class MouthPlanes:
    """Mouth coordinates (x = 1 at a corner, y down from the curved middle line) and the edges of the opening over x."""

    x: Tensor
    y: Tensor
    arch: Tensor
    round: Tensor
    between: Tensor
    top: Tensor
    low: Tensor


def paint_mouth(canvas: Canvas, person: PersonModel) -> None:
    """Paint lips, opening, teeth and tongue."""
    shape = person.mouth
    x = canvas.x / shape.half_width
    square = x.square()
    arch = (1.0 - square).clamp_(min=0.0)
    y = (canvas.y - shape.y).addcmul_((0.45 - square), shape.lift, value=-1.0)
    round_ = (1.35 - 0.35 * arch).mul_(arch)
    # The underside of the chin has the same x and y as an open mouth, but faces away.
    between = is_above(arch).mul_(smoothstep(canvas.visible, 0.0, 0.2))
    mouth = MouthPlanes(x, y, arch, round_, between, arch * -shape.gap_up, round_ * shape.gap_down)
    _paint_lips(canvas, person, mouth)
    _paint_opening(canvas, person, mouth)
    closed = 1.0 - smoothstep(mouth.low - mouth.top, 0.01, 0.04)
    line = line_coverage(y - 0.5 * (mouth.top + mouth.low), 0.011, canvas.edge_width).mul_(mouth.between).mul_(closed)
    canvas.paint(constant(x, 0.20, 0.06, 0.05) + 0.12 * person.skin, line.mul_(0.85))
    corners = bump(x.abs(), y + 0.55 * shape.lift, (1.0, 0.0), (0.16, 0.05))
    canvas.dim(corners.mul_(smoothstep(canvas.visible, 0.0, 0.2)).mul_(0.45))


def _paint_lips(canvas: Canvas, person: PersonModel, mouth: MouthPlanes) -> None:
    shape, edge_width, x, y, paint = person.mouth, canvas.edge_width, mouth.x, mouth.y, person.identity["lip_colour"]
    bow = ridge(x, 0.0, 0.34).mul_(-0.42).add_(ridge(x.abs(), 0.36, 0.4), alpha=0.10).add_(1.0)
    top = torch.addcmul(mouth.top, bow.mul_(mouth.arch), shape.upper, value=-1.0)
    bottom = torch.addcmul(mouth.low, mouth.round * (0.85 + 0.15 * mouth.arch), shape.lower)
    lips = edge_coverage(torch.minimum(y - top, bottom - y), edge_width).mul_(mouth.between)
    is_upper = edge_coverage(0.5 * (mouth.top + mouth.low) - y, edge_width)
    fullness = (y - mouth.low).div_(shape.lower)
    shade = is_upper.mul_(-0.26).add_(smoothstep(fullness, 0.45, 1.1), alpha=-0.20).add_(1.0)
    shade.mul_(torch.sin(55.0 * x).mul_(0.05 * (0.03 / edge_width).clamp(max=1.0)).add_(1.0))
    canvas.paint(shade[:, None] * lip_colour(person.skin, paint), lips * (0.80 + 0.18 * mouth.arch))
    glint = bump(x, fullness, (0.25 * person.screen_light.toward[0], 0.42), (0.55, 0.34)).mul_(lips)
    canvas.glow(glint.mul_(0.06 + 0.12 * paint).mul_(canvas.light.mean(dim=1)))


def _paint_opening(canvas: Canvas, person: PersonModel, mouth: MouthPlanes) -> None:
    gap, edge_width, x, y = person.mouth.gap_down, canvas.edge_width, mouth.x, mouth.y
    opening = edge_coverage(torch.minimum(y - mouth.top, mouth.low - y), edge_width).mul_(mouth.between)
    opening.mul_(smoothstep(mouth.low - mouth.top, 0.0, 0.02))
    colour = (0.35 + 0.65 * mouth.arch)[:, None] * (constant(x, 0.26, 0.07, 0.06) + 0.0 * person.skin)
    tongue = bump(x, y, (0.0, 1.05 * gap), (0.75, 0.02 + 0.55 * gap))
    colour.lerp_(constant(x, 0.74, 0.33, 0.32).expand_as(person.skin), tongue.mul_(0.9)[:, None])
    teeth = edge_coverage((mouth.top - y).addcmul_(mouth.arch.sqrt(), torch.full_like(gap, _TEETH_HEIGHT)), edge_width)
    teeth.mul_(edge_coverage(0.86 - x.abs(), edge_width * 4.0))
    gaps = (
        line_coverage(torch.sin(12.5 * x), 0.10, edge_width * 40.0).mul_(-0.10).add_(1.0).mul_(0.70 + 0.30 * mouth.arch)
    )
    colour.lerp_(gaps[:, None] * (constant(x, 0.95, 0.92, 0.86) + 0.0 * person.skin), teeth[:, None])
    canvas.paint(colour.mul_(0.95), opening)
