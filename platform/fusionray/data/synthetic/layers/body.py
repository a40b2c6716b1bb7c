"""Neck, shoulders and clothes, in a body frame that follows a part of the head's roll.

Legend: planes [N, H, W] in body coordinates, head units; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.geometry import (
    bump,
    edge_coverage,
    is_above,
    length,
    line_coverage,
    normalise,
    ridge,
    smoothstep,
)
from fusionray.data.synthetic.graphics.light import Light, light_cloth, light_skin, rotate_light
from fusionray.data.synthetic.graphics.palette import hue_colour
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow
from fusionray.data.synthetic.parameters.definitions import CLOTHES_STYLES
from fusionray.data.synthetic.shapes.layer_ellipses import NECK_MIDDLE, NECK_REACH
from fusionray.data.synthetic.shapes.person import PersonModel

# Clothes are below this height of the body frame.
CLOTHES_TOP = 1.10
_NECK_TOP = 0.40


@dataclass(frozen=True)
class BodyFrame:
    """Coordinates of the pixels, and the light, in the body frame."""

    x: Tensor
    y: Tensor
    edge_width: Tensor
    light: Light


def build_body_frame(person: PersonModel, window: PixelWindow) -> BodyFrame:
    """Rotate screen coordinates to the body frame."""
    cosine, sine = person.body_angle.cos(), person.body_angle.sin()
    x = torch.addcmul(window.u * cosine, window.v, sine, value=-1.0)
    y = torch.addcmul(window.u * sine, window.v, cosine)
    return BodyFrame(x, y, window.edge_width, rotate_light(person.screen_light, cosine, sine))


def paint_neck(colour: Tensor, person: PersonModel, body: BodyFrame, chin_shadow: Tensor) -> Tensor:
    """Paint neck and chest over the colour of a window, in place; return their coverage [N, H, W].

    `chin_shadow` is the blocked share of light.
    """
    head = person.head
    zero = torch.zeros_like(head.crown)
    start = person.pose.to_screen((zero, zero + 0.6, zero - 0.22))[0]
    sink = smoothstep(body.y, 0.5, 1.7)
    flare = (body.y - 1.06).clamp_(min=0.0)
    half = flare.mul_(flare.sqrt()).mul_(0.9).add_(head.half_width * (0.58 + 0.06 * person.identity["jaw_width"]))
    across = (body.x - start).addcmul_(sink, start).div_(half)
    alpha = edge_coverage((1.0 - across.abs()).mul_(0.45), body.edge_width).mul_(
        edge_coverage(body.y - _NECK_TOP, body.edge_width)
    )
    alpha.mul_(is_above(NECK_REACH - length(body.x, body.y - NECK_MIDDLE)))
    bent = across.clamp_(-0.98, 0.98)
    bones = bump(body.x.abs(), body.y, (0.24, 1.32), (0.22, 0.10)).mul_(0.5).sub_(0.25)
    normal = normalise((bent, bones, bent.square().neg_().add_(1.0).sqrt_()))
    hollow = bump(body.x, body.y, (0.0, 1.27), (0.12, 0.14)).mul_(-0.3).add_(0.92)
    lit = light_skin(normal, body.light, hollow.sub_(chin_shadow, alpha=0.70)).mul_(person.skin)
    colour.lerp_(lit.mul_((1.0 - 0.45 * chin_shadow)[:, None]), alpha[:, None])
    return alpha


def paint_clothes(colour: Tensor, person: PersonModel, body: BodyFrame) -> Tensor:
    """Paint the clothes over the colour of a window, in place; return their coverage [N, H, W]."""
    code = person.attributes["clothes_style"].round().clamp(0, len(CLOTHES_STYLES) - 1)
    worn = {style: (code == index).to(code.dtype) for index, style in enumerate(CLOTHES_STYLES)}
    side = body.x.abs()
    neckline = _neckline(worn, side, body.y)
    top = CLOTHES_TOP + 0.12 - 0.10 * (worn["hoodie"] + 0.5 * worn["jacket"])
    shoulder = (side / 1.6).square_().square_().mul_(0.30).add_(side, alpha=0.10).add_(top)
    alpha = edge_coverage(body.y - shoulder, body.edge_width).mul_(edge_coverage(-neckline, body.edge_width))
    colour.lerp_(_light_fabric(person, body, worn, neckline), alpha[:, None])
    return alpha


def _neckline(worn: dict[str, Tensor], side: Tensor, y: Tensor) -> Tensor:
    """Return the signed distance inside the neckline, in head units: round, or pointed for v-neck, jacket and shirt."""
    v_cut = worn["v_neck"] + worn["jacket"] + 0.6 * worn["shirt"]
    wide, deep = 0.40 - 0.06 * v_cut, 0.16 + 0.34 * v_cut - 0.06 * worn["hoodie"]
    below = (y - CLOTHES_TOP - 0.06).div_(deep).clamp_(min=0.0)
    beside = side / wide
    return torch.lerp(length(beside, below), beside + below, v_cut).neg_().add_(1.0).mul_(wide)


def _light_fabric(person: PersonModel, body: BodyFrame, worn: dict[str, Tensor], neckline: Tensor) -> Tensor:
    x, y, edge_width, light, attributes = body.x, body.y, body.edge_width, body.light, person.attributes
    hue, saturation, value = attributes["clothes_hue"], attributes["clothes_saturation"], attributes["clothes_value"]
    base = hue_colour(hue, 0.85 * saturation, 0.06 + 0.86 * value)
    second = hue_colour(torch.remainder(hue + 0.45, 1.0), 0.4 * saturation, 0.95 - 0.6 * value)
    folds = torch.sin(6.0 * x + 3.0 * y).mul_(0.16).add_(torch.sin(13.0 * x.abs() - 9.0 * y), alpha=0.08)
    normal = normalise(((0.62 * x).clamp_(-1.2, 1.2).add_(folds), (0.25 * folds).sub_(0.55), torch.ones_like(x)))
    lit = light_cloth(normal, light, ridge(neckline, -0.02, 0.10).mul_(-0.30).add_(0.95), base)
    trim = line_coverage(neckline + 0.045, 0.040, edge_width).mul_(
        0.28 * (worn["crew"] + worn["hoodie"] + worn["v_neck"])
    )
    button_up = worn["shirt"] + worn["jacket"]
    lines = torch.maximum(line_coverage(0.15 + neckline, 0.012, edge_width), line_coverage(x, 0.012, edge_width)).mul_(
        0.5 * button_up
    )
    lit.mul_((1.0 - trim).mul_(1.0 - lines)[:, None])
    # Stripes and collars are the same cloth in other colours, blended by their coverage.
    stripes = edge_coverage(torch.sin(21.0 * y - 2.0 * x.abs()), edge_width * 21.0).mul_(worn["stripes"])
    lit.lerp_(lit * (second / (base + 0.01)), stripes[:, None])
    collar = (
        edge_coverage(0.15 + neckline, edge_width)
        .mul_(edge_coverage(x.abs() - 0.05, edge_width))
        .mul_(0.75 * button_up)
    )
    return lit.lerp_(lit * 0.55 + 0.20 * (light.direct + light.ambient), collar[:, None])
