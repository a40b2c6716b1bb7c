"""Eyebrows, painted on the face: tapered strokes with hairs, moved by the expression.

Both sides are drawn at once over |x|. Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1].
"""

from __future__ import annotations

import torch

from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.figure import Figure
from fusionray.data.synthetic.geometry import is_above, smooth, stroke
from fusionray.data.synthetic.palette import hair_colour

_HALF_LENGTH = 0.245
# A brow thinner than this much of a pixel would vanish from small pictures.
_SOFTEST = 0.022


def paint_brows(canvas: Canvas, figure: Figure) -> None:
    """Paint both brows: raised and lowered as a whole, drawn in and down at the nose by a furrow."""
    head, identity, attributes = figure.head, figure.who, figure.how
    raise_, furrow = attributes["brow_raise"], attributes["brow_furrow"]
    centre_x = head.eye_x + 0.015 - 0.035 * furrow
    centre_y = head.eye_y - 0.275 - 0.035 * identity["brow_height"] - 0.095 * raise_ + 0.03 * furrow
    x = (canvas.x.abs() - centre_x).div_(_HALF_LENGTH)
    inner = (-0.5 * x).add_(0.5).clamp_(0.0, 1.0)
    arch = 0.042 + 0.036 * identity["brow_arch"] + 0.02 * raise_.clamp(min=0.0)
    tilt = 0.004 + 0.032 * identity["brow_tilt"]
    offset = (canvas.y - centre_y).addcmul_((x - 0.20).square_(), arch, value=-1.0).addcmul_(x, tilt)
    offset.addcmul_(inner.square(), 0.125 * furrow - 0.025 * raise_, value=-1.0)
    taper = smooth(x, 0.05, 1.05).mul_(-0.85).add_(1.0).mul_(smooth(x, -1.12, -0.80))
    thick = taper.mul_(0.046 + 0.024 * identity["brow_thickness"])
    alpha = stroke(offset, thick, canvas.step.clamp(min=_SOFTEST))
    alpha.mul_(is_above(x, -1.2)).mul_(is_above(-x, -1.1))
    hairs = torch.sin(inner.mul_(0.4).add_(0.35).mul_(canvas.x.abs()).mul_(95.0).add_(offset, alpha=70.0))
    alpha.mul_(hairs.mul_(0.14 * (0.02 / canvas.step).clamp(max=1.0)).add_(0.86))
    colour = hair_colour(identity["brow_tone"], identity["brow_warmth"], (identity["age"] - 0.55).clamp(min=0.0) * 1.6)
    canvas.paint(colour * 0.75, alpha.mul_(0.80 + 0.14 * identity["brow_thickness"]))
