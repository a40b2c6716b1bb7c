"""Eyes: lids, white, iris, pupil, glint, lashes, crease, bags.

Over |x|, so that both sides are drawn at once, in half widths of an eye. Legend: planes [N, H, W]; row
scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.canvas import Canvas
from fusionray.data.synthetic.graphics.geometry import bump, edge_coverage, is_above, length, line_coverage, smoothstep
from fusionray.data.synthetic.graphics.palette import constant, iris_colour
from fusionray.data.synthetic.shapes.person import PersonModel

_IRIS_RADIUS = 0.50
_PUPIL_RADIUS = 0.215


@dataclass(frozen=True)
class EyePlanes:
    """Eye coordinates (x towards the temple, y down) and the curves of the lids over x."""

    x: Tensor
    y: Tensor
    side: Tensor
    edge_width: Tensor
    arch: Tensor
    upper: Tensor
    upper_open: Tensor
    lower: Tensor


def paint_eyes(canvas: Canvas, person: PersonModel) -> None:
    """Paint both eyes. `gaze_x` moves both irises to the same side of the image; `eye_closure` lowers the upper lid."""
    eye = _place_eyes(canvas, person)
    _paint_ball(canvas, person, eye)
    _paint_lids(canvas, person, eye)


def _place_eyes(canvas: Canvas, person: PersonModel) -> EyePlanes:
    head, identity, attributes = person.head, person.identity, person.attributes
    half = head.eye_half_width
    tilt = 0.16 * identity["eye_tilt"]
    dx, dy = (canvas.x.abs() - head.eye_x).div_(half), (canvas.y - head.eye_y).div_(half)
    x, y = torch.addcmul(dx, tilt, dy, value=-1.0), torch.addcmul(dy, tilt, dx)
    arch = x.square().neg_().add_(1.0).clamp_(min=0.0)
    round_ = identity["eye_openness"]
    # A smile lifts the cheeks, which narrows the eyes from below.
    squint = (attributes["squint"] + 0.25 * attributes["smile"].clamp(min=0.0)).clamp(max=1.0)
    look_up = attributes["gaze_y"].clamp(max=0.0).neg()
    wide = 0.14 * attributes["brow_raise"].clamp(min=0.0)
    upper_height = (0.56 + 0.15 * round_ + wide) * (1.0 - 0.42 * squint) + 0.10 * look_up
    lower_height = (0.40 + 0.08 * round_) * (1.0 - 0.55 * squint)
    # An almond: the upper lid is highest towards the nose, the lower lid lowest towards the temple.
    upper_open = (0.28 * arch).add_(0.72).mul_(arch).mul_((-0.22 * x).add_(1.0)).mul_(-upper_height)
    lower = (0.20 * x).add_(1.0).mul_(arch).mul_(lower_height)
    upper = torch.lerp(upper_open, lower, 0.97 * attributes["eye_closure"])
    return EyePlanes(x, y, canvas.x.sign(), canvas.edge_width / half, arch, upper, upper_open, lower)


def _paint_ball(canvas: Canvas, person: PersonModel, eye: EyePlanes) -> None:
    x, y, edge_width, attributes, light = eye.x, eye.y, eye.edge_width, person.attributes, person.screen_light
    under_lid = smoothstep(y - eye.upper, 0.0, 0.34)
    shade = (-0.22 * x.square()).add_(1.0).mul_((0.38 * under_lid).add_(0.62))
    gx = torch.addcmul(x, eye.side, 0.50 * attributes["gaze_x"], value=-1.0)
    gy = y + (0.06 - 0.26 * attributes["gaze_y"])
    away = length(gx, gy)
    rays = torch.sin((21.0 * gx).div_(away + 0.05)).mul_(0.12 * (0.06 / edge_width).clamp(max=1.0))
    ring = smoothstep(away, 0.36, 0.52).mul_(-0.62).add_(1.0)
    glow = smoothstep(gy, -0.3, 0.45).mul_(0.75).add_(0.62).add_(rays).mul_(ring).mul_(under_lid.mul_(0.30).add_(0.70))
    colour = shade[:, None] * (constant(x, 0.96, 0.94, 0.92) + 0.0 * light.direct)
    colour.lerp_(
        glow[:, None] * iris_colour(person.identity["iris_tone"]),
        edge_coverage(_IRIS_RADIUS - away, edge_width)[:, None],
    )
    colour.mul_(edge_coverage(_PUPIL_RADIUS - away, edge_width).mul_(-0.94).add_(1.0)[:, None])
    # The eyeball is round: about half of its light does not depend on the normal of the face.
    colour.mul_(canvas.light.mean(dim=1, keepdim=True).mul_(0.62).add(canvas.light, alpha=0.50))
    glint_x = gx.addcmul_(eye.side, 0.17 * light.toward[0].clamp(-0.9, 0.9), value=-1.0)
    glint = edge_coverage(length(glint_x, gy.add_(0.16)).neg_().add_(0.115), edge_width)
    colour.add_(glint.mul_(0.85)[:, None])
    open_ = edge_coverage(torch.minimum(y - eye.upper, eye.lower - y), edge_width).mul_(canvas.visible.clamp(max=1.0))
    canvas.colour.lerp_(colour, open_.mul_(is_above(eye.arch))[:, None])


def _paint_lids(canvas: Canvas, person: PersonModel, eye: EyePlanes) -> None:
    x, y, edge_width, arch, skin = eye.x, eye.y, eye.edge_width, eye.arch, person.skin
    near = smoothstep(arch, -0.001, 0.06)
    rim = arch.sqrt()
    lid = edge_coverage(torch.minimum(y - eye.upper_open, eye.upper - y), edge_width).mul_(near)
    canvas.paint(skin * 0.80, lid * 0.75)
    canvas.glow(lid.mul_(bump(x, y, (0.0, 0.0), (0.9, 0.8))).mul_(0.10))
    fold = person.identity["eye_fold"]
    crease = line_coverage((y - eye.upper_open).addcmul_(rim, 0.10 + 0.14 * fold).add_(0.05), 0.045, edge_width)
    dark = crease.mul_(near).mul_(0.12 + 0.50 * fold)
    dark.add_(bump(x, y - eye.upper, (0.0, -0.07), (1.05, 0.22)), alpha=0.30)
    bags = 0.02 + 0.30 * person.identity["age"] + 0.22 * person.attributes["squint"]
    under = (y - eye.lower).sub_(0.03)
    dark.addcmul_(line_coverage(under.sub(rim, alpha=0.20), 0.05, edge_width).mul_(near), bags)
    canvas.dim(dark.clamp_(max=0.8))
    lashes = line_coverage(
        (y - eye.upper).add_(0.02), smoothstep(x, -0.8, 0.9).mul_(0.035).add_(0.045), edge_width
    ).mul_(near)
    wing = line_coverage((y - eye.upper).add_(x, alpha=0.3).sub_(0.155), 0.05, edge_width)
    wing.mul_(bump(x, y, (1.0, -0.05), (0.22, 0.40)))
    canvas.paint(constant(x, 0.09, 0.06, 0.05), torch.maximum(lashes.mul_(0.94), wing.mul_(0.8)))
    canvas.paint(
        skin * constant(x, 0.62, 0.52, 0.50), line_coverage(under.add_(0.01), 0.03, edge_width).mul_(near).mul_(0.60)
    )
