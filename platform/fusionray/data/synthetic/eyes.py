"""Eyes and brows, painted on the face: lids, white, iris, pupil, glint, lashes, crease, tapered brows.

Both sides are drawn at once over |x|. Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.geometry import bump, cover, smooth, stroke
from fusionray.data.synthetic.head import HeadShape
from fusionray.data.synthetic.light import Light
from fusionray.data.synthetic.palette import constant, hair_colour, iris_colour
from fusionray.data.synthetic.parameters import Columns


def paint_eyes(canvas: Canvas, identity: Columns, attributes: Columns, shape: HeadShape, skin: Tensor,
               light: Light) -> None:
    """Paint both eyes. `gaze_x` moves both irises to the same image side; closing lowers the upper lid."""
    half = shape.eye_half_width
    side = canvas.x.sign()
    tilt = 0.16 * identity["eye_tilt"]
    dx, dy = (canvas.x.abs() - shape.eye_x) / half, (canvas.y - shape.eye_y) / half
    x, y = dx - tilt * dy, dy + tilt * dx
    step = canvas.step / half
    arch = (1.0 - x * x).clamp(min=0.0)
    round_ = identity["eye_openness"]
    closure, squint = attributes["eye_closure"], attributes["squint"]
    wide = 0.10 * attributes["brow_raise"].clamp(min=0.0)
    upper_height = (0.62 + 0.15 * round_ + wide) * (1.0 - 0.38 * squint) + 0.10 * attributes["gaze_y"].clamp(max=0.0).neg()
    lower_height = (0.40 + 0.07 * round_) * (1.0 - 0.50 * squint)
    # The lid's highest point lies nearer the nose, its lowest nearer the temple: an almond, not a lens.
    upper_full = -upper_height * arch * (1.0 - 0.22 * x) * (0.72 + 0.28 * arch)
    lower = lower_height * arch * (1.0 + 0.20 * x)
    upper = upper_full + closure * (lower - upper_full) * 0.97
    open_ = cover(torch.minimum(y - upper, lower - y), step) * (arch > 0).to(x.dtype)
    _paint_ball(canvas, identity, attributes, light, x, y, side, step, upper, open_)
    _paint_lids(canvas, identity, attributes, skin, x, y, step, arch, upper, upper_full, lower)


def _paint_ball(canvas: Canvas, identity: Columns, attributes: Columns, light: Light, x: Tensor, y: Tensor,
                side: Tensor, step: Tensor, upper: Tensor, open_: Tensor) -> None:
    lit = canvas.light.mean(dim=1, keepdim=True) * 0.55 + 0.45 * canvas.light
    white = constant(x, 0.96, 0.94, 0.92)
    shade = (1.0 - 0.22 * x * x) * (0.62 + 0.38 * smooth(y - upper, 0.0, 0.34))
    colour = white * shade[:, None]
    radius = 0.50
    gx = x - 0.46 * attributes["gaze_x"] * side
    gy = y + 0.06 - 0.26 * attributes["gaze_y"]
    away = (gx * gx + gy * gy).sqrt()
    iris = iris_colour(identity["iris_tone"])
    rays = 0.12 * torch.sin(21.0 * gx / (away + 0.05)) * (0.06 / step).clamp(max=1.0)
    glow = (0.62 + 0.75 * smooth(gy, -0.3, 0.45) + rays) * (1.0 - 0.62 * smooth(away, 0.36, 0.52))
    iris_alpha = cover(radius - away, step)
    colour = torch.lerp(colour, iris * (glow * (0.70 + 0.30 * smooth(y - upper, 0.0, 0.3)))[:, None], iris_alpha[:, None])
    colour = colour * (1.0 - 0.94 * cover(0.215 - away, step))[:, None]
    glint_x = gx - 0.17 * light.screen[0].clamp(-0.9, 0.9) * side
    glint_y = gy + 0.16
    glint = cover(0.115 - (glint_x * glint_x + glint_y * glint_y).sqrt(), step)
    colour = colour * 1.12 * lit + (glint * 0.85)[:, None]
    canvas.colour = torch.lerp(canvas.colour, colour, (open_ * canvas.visible.clamp(max=1.0))[:, None])


def _paint_lids(canvas: Canvas, identity: Columns, attributes: Columns, skin: Tensor, x: Tensor, y: Tensor,
                step: Tensor, arch: Tensor, upper: Tensor, upper_full: Tensor, lower: Tensor) -> None:
    near = smooth(arch, -0.001, 0.06)
    lid = cover(torch.minimum(y - upper_full, upper - y), step) * near
    canvas.paint(skin * 0.80, lid * 0.75)
    canvas.glow(0.10 * lid * bump(x, y, (0.0, 0.0), (0.9, 0.8)))
    fold = identity["eye_fold"]
    crease_at = upper_full - (0.10 + 0.14 * fold) * arch.sqrt() - 0.05
    canvas.dim((0.12 + 0.50 * fold) * stroke(y - crease_at, 0.045, step) * near)
    canvas.dim(0.30 * bump(x, y - upper, (0.0, -0.07), (1.05, 0.22)))
    dark = constant(x, 0.09, 0.06, 0.05)
    thick = 0.045 + 0.035 * smooth(x, -0.8, 0.9)
    lashes = stroke(y - upper + 0.02, thick, step) * near
    canvas.paint(dark, 0.94 * lashes)
    wing = stroke(y - upper + 0.10 + 0.3 * (x - 0.85), 0.05, step) * bump(x, y, (1.0, -0.05), (0.22, 0.40))
    canvas.paint(dark, 0.8 * wing)
    canvas.paint(skin * constant(x, 0.62, 0.52, 0.50), 0.60 * stroke(y - lower - 0.02, 0.03, step) * near)
    bags = 0.05 + 0.30 * identity["age"] + 0.22 * attributes["squint"]
    canvas.dim(bags * stroke(y - lower - 0.20 * arch.sqrt() - 0.03, 0.05, step) * near)


def paint_brows(canvas: Canvas, identity: Columns, attributes: Columns, shape: HeadShape) -> None:
    """Paint both brows: raised and lowered as a whole, drawn in and down at the nose by a furrow."""
    half = 0.245
    raise_, furrow = attributes["brow_raise"], attributes["brow_furrow"]
    centre_x = shape.eye_x + 0.015 - 0.035 * furrow
    centre_y = shape.eye_y - 0.275 - 0.035 * identity["brow_height"] - 0.095 * raise_ + 0.03 * furrow
    x = (canvas.x.abs() - centre_x) / half
    inner = (0.5 - 0.5 * x).clamp(0.0, 1.0)
    arch = 0.055 + 0.035 * identity["brow_arch"] + 0.02 * raise_.clamp(min=0.0)
    tilt = 0.045 + 0.04 * identity["brow_tilt"]
    peak = x - 0.25
    middle = centre_y + arch * peak * peak - tilt * x + 0.02 + (0.125 * furrow - 0.025 * raise_) * inner * inner
    taper = (1.0 - smooth(x, 0.05, 1.05) * 0.85) * smooth(x, -1.12, -0.80)
    thick = (0.046 + 0.024 * identity["brow_thickness"]) * taper
    offset = canvas.y - middle
    alpha = stroke(offset, thick, canvas.step.clamp(min=0.022)) * ((x > -1.2) & (x < 1.1)).to(x.dtype)
    hairs = torch.sin(95.0 * canvas.x.abs() * (0.35 + 0.4 * inner) + (70.0 * offset))
    strength = 0.86 + 0.14 * hairs * (0.02 / canvas.step).clamp(max=1.0)
    colour = hair_colour(identity["brow_tone"], identity["brow_warmth"], (identity["age"] - 0.55).clamp(min=0.0) * 1.6)
    canvas.paint(colour * 0.75, alpha * strength * (0.80 + 0.14 * identity["brow_thickness"]))
