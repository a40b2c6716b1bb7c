"""The mouth, painted on the face: two lips with a cupid's bow, an opening with teeth and tongue.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.geometry import bump, cover, smooth, stroke
from fusionray.data.synthetic.head import HeadShape
from fusionray.data.synthetic.light import Light
from fusionray.data.synthetic.palette import constant, lip_colour
from fusionray.data.synthetic.parameters import Columns


@dataclass(frozen=True)
class MouthShape:
    """Sizes in head units; `lift` raises the corners against the middle."""

    half_width: Tensor
    y: Tensor
    lift: Tensor
    upper: Tensor
    lower: Tensor
    gap_up: Tensor
    gap_down: Tensor

    def corner_y(self) -> Tensor:
        """Return the height of the corners."""
        return self.y - 0.55 * self.lift


def build_mouth(identity: Columns, attributes: Columns, shape: HeadShape) -> MouthShape:
    """Build the mouth: a smile widens it, lifts its corners and bares some teeth, a frown drops and narrows it."""
    smile, open_ = attributes["smile"], attributes["mouth_open"]
    glad = smile.clamp(min=0.0)
    stretch = 1.0 + 0.26 * glad - 0.06 * (-smile).clamp(min=0.0) - 0.14 * open_
    return MouthShape(
        half_width=(0.255 + 0.042 * identity["mouth_width"]) * stretch,
        y=shape.mouth_y,
        lift=0.135 * smile,
        upper=(0.062 + 0.030 * identity["upper_lip"]) * (1.0 - 0.25 * glad),
        lower=(0.080 + 0.034 * identity["lower_lip"]) * (1.0 - 0.15 * glad),
        gap_up=0.030 * open_ + 0.012 * glad,
        gap_down=0.225 * open_ + 0.055 * (glad - 0.25).clamp(min=0.0),
    )


def paint_mouth(canvas: Canvas, identity: Columns, shape: MouthShape, skin: Tensor, light: Light) -> None:
    """Paint lips, opening, teeth and tongue."""
    x = canvas.x / shape.half_width
    square = x * x
    arch = (1.0 - square).clamp(min=0.0)
    near = (square < 1.0).to(x.dtype)
    step = canvas.step
    y = canvas.y - shape.y - shape.lift * (0.45 - square)
    bow = 1.0 - 0.42 * bump(x, x * 0.0, (0.0, 0.0), (0.34, 1.0)) + 0.10 * bump(x.abs(), x * 0.0, (0.36, 0.0), (0.4, 1.0))
    round_ = arch * (1.35 - 0.35 * arch)
    inner_top = -shape.gap_up * arch
    inner_low = shape.gap_down * round_
    top = inner_top - shape.upper * arch * bow
    bottom = inner_low + shape.lower * round_ * (0.85 + 0.15 * arch)
    lips = cover(torch.minimum(y - top, bottom - y), step) * near
    colour = lip_colour(skin, identity["lip_colour"])
    upper_part = cover(-y + 0.5 * (inner_top + inner_low), step)
    fullness = (y - inner_low) / shape.lower
    shade = 1.0 - 0.26 * upper_part - 0.20 * smooth(fullness, 0.45, 1.1)
    creases = 1.0 + 0.05 * torch.sin(55.0 * x) * (0.03 / step).clamp(max=1.0)
    canvas.paint(colour * (shade * creases)[:, None], lips * (0.80 + 0.18 * arch))
    glint = bump(x, fullness, (0.25 * light.screen[0], 0.42), (0.55, 0.34)) * lips
    canvas.glow((0.06 + 0.12 * identity["lip_colour"]) * glint * canvas.light.mean(dim=1))
    _paint_opening(canvas, shape, x, y, arch, inner_top, inner_low, near)
    line = stroke(y - 0.5 * (inner_top + inner_low), 0.011, step) * near * (1.0 - smooth(inner_low - inner_top, 0.01, 0.04))
    canvas.paint(constant(x, 0.20, 0.06, 0.05) + 0.12 * skin, 0.85 * line)
    corner = bump(x.abs(), y + 0.55 * shape.lift, (1.0, 0.0), (0.16, 0.05))
    canvas.dim(0.45 * corner)


def _paint_opening(canvas: Canvas, shape: MouthShape, x: Tensor, y: Tensor, arch: Tensor, top: Tensor, low: Tensor,
                   near: Tensor) -> None:
    step = canvas.step
    opening = cover(torch.minimum(y - top, low - y), step) * near * smooth(low - top, 0.0, 0.02)
    depth = constant(x, 0.26, 0.07, 0.06) * (0.35 + 0.65 * arch)[:, None]
    tongue = bump(x, y, (0.0, shape.gap_down * 1.05), (0.75, 0.02 + 0.55 * shape.gap_down))
    depth = torch.lerp(depth, constant(x, 0.74, 0.33, 0.32), (0.9 * tongue)[:, None])
    teeth_height = 0.075 * arch.sqrt()
    teeth = cover(top + teeth_height - y, step) * cover(0.86 - x.abs(), step * 4.0)
    gaps = 1.0 - 0.10 * stroke(torch.sin(12.5 * x), 0.10, step * 40.0)
    ivory = constant(x, 0.95, 0.92, 0.86) * ((0.70 + 0.30 * arch) * gaps)[:, None]
    depth = torch.lerp(depth, ivory, teeth[:, None])
    canvas.paint(depth * 0.95, opening)
