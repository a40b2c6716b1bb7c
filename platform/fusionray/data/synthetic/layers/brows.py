"""Eyebrows: tapered strokes with hairs, which the expression moves.

Over |x|, so that both sides are drawn at once. Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1].
"""

from __future__ import annotations

import torch

from fusionray.data.synthetic.graphics.canvas import Canvas
from fusionray.data.synthetic.graphics.geometry import is_above, line_coverage, smoothstep
from fusionray.data.synthetic.graphics.palette import hair_colour
from fusionray.data.synthetic.shapes.person import PersonModel

_HALF_LENGTH = 0.245
# Narrowest soft edge, in face units.
_SOFTEST = 0.022


def paint_brows(canvas: Canvas, person: PersonModel) -> None:
    """Paint both brows: `brow_raise` moves them up and down, `brow_furrow` moves the inner ends in and down."""
    head, identity, attributes = person.head, person.identity, person.attributes
    raise_, furrow = attributes["brow_raise"], attributes["brow_furrow"]
    centre_x = head.eye_x + 0.015 - 0.035 * furrow
    centre_y = head.eye_y - 0.275 - 0.035 * identity["brow_height"] - 0.095 * raise_ + 0.03 * furrow
    x = (canvas.x.abs() - centre_x).div_(_HALF_LENGTH)
    inner = (-0.5 * x).add_(0.5).clamp_(0.0, 1.0)
    arch = 0.042 + 0.036 * identity["brow_arch"] + 0.02 * raise_.clamp(min=0.0)
    tilt = 0.004 + 0.032 * identity["brow_tilt"]
    offset = (canvas.y - centre_y).addcmul_((x - 0.20).square_(), arch, value=-1.0).addcmul_(x, tilt)
    offset.addcmul_(inner.square(), 0.125 * furrow - 0.025 * raise_, value=-1.0)
    taper = smoothstep(x, 0.05, 1.05).mul_(-0.85).add_(1.0).mul_(smoothstep(x, -1.12, -0.80))
    thick = taper.mul_(0.046 + 0.024 * identity["brow_thickness"])
    alpha = line_coverage(offset, thick, canvas.edge_width.clamp(min=_SOFTEST))
    alpha.mul_(is_above(x, -1.2)).mul_(is_above(-x, -1.1))
    hairs = torch.sin(inner.mul_(0.4).add_(0.35).mul_(canvas.x.abs()).mul_(95.0).add_(offset, alpha=70.0))
    alpha.mul_(hairs.mul_(0.14 * (0.02 / canvas.edge_width).clamp(max=1.0)).add_(0.86))
    colour = hair_colour(identity["brow_tone"], identity["brow_warmth"], (identity["age"] - 0.55).clamp(min=0.0) * 1.6)
    canvas.paint(colour * 0.75, alpha.mul_(0.80 + 0.14 * identity["brow_thickness"]))
