"""Neck, shoulders and clothes, in a body frame that leans only partly with the head.

Legend: planes [N, H, W] in body coordinates, head units; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Pose, Region, Vector, bump, cover, normalise, smooth, stroke
from fusionray.data.synthetic.head import HeadShape
from fusionray.data.synthetic.light import Light, cloth_wrap, illuminate, skin_wrap
from fusionray.data.synthetic.palette import constant, hue_colour
from fusionray.data.synthetic.parameters import CLOTHES_STYLES, Columns

_LEAN = 0.35
# Nothing of the body lies above this height of its frame.
NECK_TOP = 0.35


@dataclass(frozen=True)
class BodyFrame:
    """Pixels in the body frame, with the light's direction and the sky's there."""

    x: Tensor
    y: Tensor
    step: Tensor
    light: Vector
    up: Vector


def body_angle(attributes: Columns) -> Tensor:
    """Return the angle [N, 1, 1] in radians by which the body stands back from the head's roll."""
    return torch.deg2rad(attributes["roll"]) * (1.0 - _LEAN)


def build_body_frame(attributes: Columns, light: Light, region: Region) -> BodyFrame:
    """Turn screen coordinates back by most of the head's roll."""
    angle = body_angle(attributes)
    cosine, sine = angle.cos(), angle.sin()
    x, y = region.u * cosine - region.v * sine, region.u * sine + region.v * cosine
    lx, ly, lz = light.screen
    turned = (lx * cosine - ly * sine, lx * sine + ly * cosine, lz)
    zero = torch.zeros_like(cosine)
    return BodyFrame(x, y, region.step, turned, (zero, zero - 1.0, zero))


def paint_body(colour: Tensor, identity: Columns, attributes: Columns, shape: HeadShape, skin: Tensor, pose: Pose,
               light: Light, body: BodyFrame, chin_shadow: Tensor) -> Tensor:
    """Return the colour [N, 3, H, W] with neck and clothes painted over it."""
    colour = _paint_neck(colour, identity, shape, skin, pose, light, body, chin_shadow)
    return _paint_clothes(colour, attributes, light, body, chin_shadow)


def _paint_neck(colour: Tensor, identity: Columns, shape: HeadShape, skin: Tensor, pose: Pose, light: Light,
                body: BodyFrame, chin_shadow: Tensor) -> Tensor:
    zero = torch.zeros_like(shape.crown)
    start = pose.to_screen((zero, zero + 0.6, zero - 0.22))[0]
    sink = smooth(body.y, 0.5, 1.7)
    half = shape.half_width * (0.60 + 0.05 * identity["jaw_width"])
    half = half * (1.0 + 0.02 * sink) + 0.9 * (body.y - 1.22).clamp(min=0.0) ** 1.5
    across = (body.x - start * (1.0 - sink)) / half
    alpha = cover((1.0 - across.abs()) * 0.45, body.step) * cover(body.y - NECK_TOP - 0.05, body.step)
    bent = across.clamp(-0.98, 0.98)
    collar_bones = bump(body.x.abs(), body.y, (0.24, 1.46), (0.22, 0.10))
    normal = normalise((bent, -0.25 + 0.5 * collar_bones, (1.0 - bent * bent).sqrt()))
    hollow = bump(body.x, body.y, (0.0, 1.40), (0.12, 0.14)) * 0.3
    lit = illuminate(normal, body.light, body.up, light, 0.92 - 0.70 * chin_shadow - hollow, skin_wrap(skin))
    return torch.lerp(colour, skin * lit * (1.0 - 0.45 * chin_shadow)[:, None], alpha[:, None])


def _paint_clothes(colour: Tensor, attributes: Columns, light: Light, body: BodyFrame, chin_shadow: Tensor) -> Tensor:
    x, y, step = body.x, body.y, body.step
    side = x.abs()
    code = attributes["clothes_style"].round().clamp(0, len(CLOTHES_STYLES) - 1)
    worn = {style: (code == index).to(x.dtype) for index, style in enumerate(CLOTHES_STYLES)}
    shoulder = 1.36 + 0.10 * side + 0.30 * (side / 1.5) ** 4 - 0.10 * (worn["hoodie"] + 0.5 * worn["jacket"])
    v_cut = worn["v_neck"] + worn["jacket"] + 0.6 * worn["shirt"]
    wide, deep = 0.40 - 0.06 * v_cut, 0.16 + 0.34 * v_cut - 0.06 * worn["hoodie"]
    below = ((y - 1.30) / deep).clamp(min=-1.0)
    round_cut = 1.0 - ((side / wide) ** 2 + below.clamp(min=0.0) ** 2).sqrt()
    pointed = 1.0 - side / wide - below.clamp(min=0.0)
    neckline = torch.lerp(round_cut, pointed, v_cut.clamp(max=1.0)) * wide
    alpha = cover(y - shoulder, step) * cover(-neckline, step)
    value = 0.06 + 0.86 * attributes["clothes_value"]
    base = hue_colour(attributes["clothes_hue"], 0.85 * attributes["clothes_saturation"], value)
    second = hue_colour(torch.remainder(attributes["clothes_hue"] + 0.45, 1.0), 0.4 * attributes["clothes_saturation"],
                        0.95 - 0.6 * attributes["clothes_value"])
    folds = torch.sin(6.0 * x + 3.0 * y) * 0.16 + torch.sin(13.0 * side - 9.0 * y) * 0.08
    normal = normalise(((0.62 * x).clamp(-1.2, 1.2) + folds, -0.55 + 0.25 * folds + 0.0 * y, torch.ones_like(x)))
    shade = 0.95 - 0.45 * chin_shadow - 0.30 * bump(neckline, y * 0.0, (-0.02, 0.0), (0.10, 1.0))
    lit = illuminate(normal, body.light, body.up, light, shade, cloth_wrap(x))
    stripes = worn["stripes"] * cover(torch.sin(21.0 * y - 2.0 * side), step * 21.0)
    fabric = torch.lerp(base, second, stripes[:, None])
    trim = stroke(neckline + 0.045, 0.040, step) * (worn["crew"] + worn["hoodie"] + worn["v_neck"]).clamp(max=1.0)
    fabric = fabric * (1.0 - 0.28 * trim)[:, None]
    collar = cover(0.15 + neckline, step) * (worn["shirt"] + 0.9 * worn["jacket"]) * cover(side - 0.05, step)
    fabric = torch.lerp(fabric, fabric * 0.55 + constant(x, 0.5, 0.5, 0.5), (0.75 * collar)[:, None])
    edge = stroke(0.15 + neckline, 0.012, step) * (worn["shirt"] + worn["jacket"])
    buttons = stroke(x, 0.012, step) * (worn["shirt"] + worn["jacket"])
    fabric = fabric * (1.0 - 0.5 * torch.maximum(edge, buttons))[:, None]
    return torch.lerp(colour, fabric * lit, alpha[:, None])
