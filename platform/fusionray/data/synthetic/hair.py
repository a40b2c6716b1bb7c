"""Hair: a shell round the skull with an opening for the face; its far side hangs behind the neck.

Eleven styles are rows of one table of shell and opening sizes. Legend: planes [N, H, W] in head coordinates; row
scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Pose, Region, Vector, cast, cover, normalise, smooth, stroke
from fusionray.data.synthetic.head import HeadShape
from fusionray.data.synthetic.light import Light, cloth_wrap, illuminate, shine
from fusionray.data.synthetic.palette import hair_colour
from fusionray.data.synthetic.parameters import HAIR_STYLES, Columns

_STYLE_COLUMNS = ("lift", "side", "back", "drop", "grow", "low", "front", "temple", "square", "slant", "curl", "density",
                  "knot")
# Head units; `drop` is where hair ends below, `grow` how far length moves that, `temple` in head half widths.
_STYLES: dict[str, tuple[float, ...]] = {
    "bald": (0.02, 0.02, 0.02, 0.30, 0.00, 0.95, -0.60, 1.13, 0.8, 0.0, 0.000, 0.00, 0.0),
    "buzz": (0.035, 0.03, 0.03, 0.30, 0.00, 0.95, -0.60, 1.13, 0.8, 0.0, 0.000, 0.86, 0.0),
    "side_part": (0.17, 0.07, 0.08, 0.34, 0.05, 0.95, -0.52, 1.11, 0.6, 0.9, 0.008, 1.00, 0.0),
    "fringe": (0.14, 0.11, 0.10, 0.36, 0.08, 0.95, -0.31, 1.04, 1.0, 0.1, 0.012, 1.00, 0.0),
    "bob": (0.13, 0.17, 0.14, 0.78, 0.25, 1.60, -0.44, 0.85, 0.9, 0.3, 0.004, 1.00, 0.0),
    "long": (0.12, 0.16, 0.15, 1.70, 0.60, 3.00, -0.58, 0.82, 0.6, 0.3, 0.010, 1.00, 0.0),
    "curly": (0.22, 0.24, 0.20, 0.95, 0.40, 1.50, -0.50, 0.86, 0.6, 0.2, 0.055, 1.00, 0.0),
    "afro": (0.36, 0.38, 0.30, 0.44, 0.15, 0.95, -0.54, 1.00, 0.5, 0.0, 0.038, 1.00, 0.0),
    "bun": (0.07, 0.045, 0.06, 0.28, 0.00, 0.95, -0.62, 1.10, 0.5, 0.0, 0.000, 1.00, 1.0),
    "ponytail": (0.08, 0.05, 0.06, 0.30, 0.00, 0.95, -0.58, 1.10, 0.6, 0.4, 0.000, 1.00, 2.0),
    "swept_back": (0.17, 0.06, 0.16, 0.48, 0.10, 1.00, -0.68, 1.07, 0.9, 0.0, 0.010, 1.00, 0.0),
}
assert tuple(_STYLES) == HAIR_STYLES


@dataclass(frozen=True)
class HairShape:
    """The shell's centre and half axes, the opening, and the style's amounts."""

    centre_y: Tensor
    half_width: Tensor
    up: Tensor
    low: Tensor
    half_depth: Tensor
    drop: Tensor
    front: Tensor
    temple: Tensor
    square: Tensor
    slant: Tensor
    curl: Tensor
    density: Tensor
    knot: Tensor
    part: Tensor
    colour: Tensor


def build_hair(attributes: Columns, shape: HeadShape) -> HairShape:
    """Build the hair of each row round its head."""
    code = attributes["hair_style"].round().clamp(0, len(HAIR_STYLES) - 1).to(torch.int64)[:, 0, 0]
    table = torch.tensor(list(_STYLES.values()), dtype=shape.crown.dtype, device=shape.crown.device)[code]
    style = {name: table[:, index, None, None] for index, name in enumerate(_STYLE_COLUMNS)}
    volume = 0.75 + 0.6 * attributes["hair_volume"]
    length = attributes["hair_length"] - 0.5
    return HairShape(
        centre_y=torch.full_like(length, -0.06),
        half_width=shape.half_width * shape.width_at(torch.full_like(length, -0.2)).clamp(min=1.0) + style["side"] * volume,
        up=shape.crown - 0.06 + style["lift"] * volume + 0.02,
        low=style["low"] + 0.06,
        half_depth=shape.half_depth + 0.02 + style["back"] * volume,
        drop=style["drop"] + style["grow"] * length,
        front=style["front"] + 0.10 * length * (style["density"] > 0.9) + 0.02 * attributes["hair_part"],
        temple=style["temple"] * shape.half_width,
        square=style["square"],
        slant=style["slant"] * attributes["hair_part"],
        curl=style["curl"] * (0.8 + 0.5 * attributes["hair_volume"]),
        density=style["density"],
        knot=style["knot"],
        part=attributes["hair_part"],
        colour=hair_colour(attributes["hair_tone"], attributes["hair_warmth"], attributes["hair_grey"]),
    )


def face_opening(hair: HairShape, point: Vector) -> Tensor:
    """Return how far out of the hair's opening a point is: < 1 bare, > 1 hair; the sides count as further out."""
    side = point[0].abs() + 0.8 * (-point[2]).clamp(min=0.0)
    middle = 0.34
    line = hair.front + 0.16 * hair.slant * (point[0] / hair.half_width) * (1.0 - hair.square * 0.4)
    qy = ((middle - point[1]).clamp(min=0.0) / (middle - line)) ** 2
    qx = (side / hair.temple) ** 2
    return torch.lerp(qx + qy, (qx * qx + qy * qy).sqrt(), hair.square).sqrt()


@dataclass(frozen=True)
class HairPaint:
    """The hair in a window: near layer and far layer, each colour [N, 3, h, w] and coverage [N, h, w], and depth."""

    near_colour: Tensor
    near_alpha: Tensor
    far_colour: Tensor
    far_alpha: Tensor
    t: Tensor


def draw_hair(hair: HairShape, pose: Pose, light: Light, region: Region) -> HairPaint:
    """Draw both layers of the shell."""
    zero = torch.zeros_like(region.u[:, :1, :1])
    x, y, z = pose.to_head((region.u, region.v, zero))
    y = y - hair.centre_y
    squares = tuple(1.0 / (axis * axis) for axis in (hair.half_width, hair.up, hair.half_depth, hair.low))
    first = cast((x, y, z), pose.toward, (squares[0], squares[1], squares[2]))
    below = ((y + first.t * pose.toward[1]) > 0).to(y.dtype)
    inverse = (squares[0], squares[1] + (squares[3] - squares[1]) * below, squares[2])
    hit = cast((x, y, z), pose.toward, inverse)
    px, py, pz = (start + hit.t * along for start, along in zip((x, y, z), pose.toward, strict=True))
    curls = _curls(hair.curl, px, py, pz)
    distance = (1.0 - hit.reach) * 0.85 + hair.curl * curls
    lon = px / (1.0 - py * py * inverse[1]).clamp(min=0.05).sqrt() - 0.3 * hair.part
    strands = _strands(lon, py, region, hair)
    end = hair.drop - (py + hair.centre_y) + 0.05 * strands + 0.6 * hair.curl * curls
    body = cover(distance, region.step) * hair.density
    shell_end = cover(end, region.step + 0.05)
    edge = face_opening(hair, (px, py + hair.centre_y, pz)) - 1.0 + 0.025 * strands + hair.curl * curls
    near = body * shell_end * cover(edge * 0.45, region.step + 0.012)
    rough = (6.0 * hair.curl).clamp(max=0.4)
    normal = normalise((px * inverse[0] + 0.22 * strands + rough * curls, py * inverse[1] - rough * curls,
                        pz * inverse[2]))
    lit = illuminate(normal, light.head, light.head_up, light, 0.86 + rough * curls, cloth_wrap(px))
    parting = stroke(px - 0.34 * hair.part + 0.05 * py, 0.014, region.step) * hair.slant.abs() * smooth(-py, 0.50, 0.62)
    tone = (0.92 + 0.20 * strands + 0.25 * rough * curls) * (1.0 - 0.55 * parting)
    gloss = shine(normal, light.head_half, 4) * (0.55 + 0.45 * strands) * (1.0 - 1.6 * rough)
    sheen = hair.colour.sqrt() * 0.22 + 0.02
    colour = hair.colour * lit * tone[:, None] + light.direct_N3 * sheen * gloss.clamp(min=0.0)[:, None]
    far_shade = (0.34 + 0.10 * strands + 0.10 * px / hair.half_width * light.head[0])[:, None]
    far_colour = hair.colour * (light.direct_N3 + light.ambient_N3) * far_shade
    return HairPaint(colour, near, far_colour, body * shell_end, hit.t)


def _strands(lon: Tensor, y: Tensor, region: Region, hair: HairShape) -> Tensor:
    """Return the brightness of strands that run from the crown down, in [-1, 1]; fades when finer than pixels."""
    bend = 2.0 * torch.sin(3.1 * y + 4.0 * hair.part)
    coarse = torch.sin(23.0 * lon + bend) * (0.12 / region.step).clamp(max=1.0)
    fine = torch.sin(61.0 * lon + 1.7 * bend + 5.0 * y) * (0.04 / region.step).clamp(max=1.0)
    finest = torch.sin(127.0 * lon + 9.0 * y + bend) * (0.018 / region.step).clamp(max=1.0)
    return 0.45 * coarse + 0.33 * fine + 0.22 * finest


def _curls(curl: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Return a lumpy field in about [-1, 1] over the shell."""
    if not bool((curl > 0.03).any()):
        return torch.zeros_like(x)
    wave = torch.sin(19.0 * x + 4.0 * y) * torch.sin(17.0 * y - 5.0 * x + 1.0)
    return 0.7 * wave + 0.5 * torch.sin(33.0 * (y + 0.4 * z) + 21.0 * x) * torch.sin(29.0 * x - 11.0 * y)


@dataclass(frozen=True)
class KnotPaint:
    """A bun or ponytail: colour [N, 3, h, w] and coverage [N, h, w]; it lies behind the head."""

    colour: Tensor
    alpha: Tensor


def knot_place(hair: HairShape) -> tuple[Vector, Vector]:
    """Return centre and half axes of the bun (knot 1) or ponytail (knot 2)."""
    is_tail = (hair.knot > 1.5).to(hair.knot.dtype)
    side = hair.part.sign()
    centre = (is_tail * side * 0.78, is_tail * 0.95 - 1.17 + 0.0 * side, -0.20 - 0.45 * is_tail)
    return centre, (0.30 - 0.08 * is_tail, 0.27 + 0.48 * is_tail, 0.30 - 0.08 * is_tail)


def draw_knot(hair: HairShape, pose: Pose, light: Light, region: Region) -> KnotPaint:
    """Draw the bun or ponytail of the rows that wear one."""
    centre, axes = knot_place(hair)
    zero = torch.zeros_like(region.u[:, :1, :1])
    x, y, z = (value - middle for value, middle in
               zip(pose.to_head((region.u, region.v, zero)), centre, strict=True))
    inverse = (1.0 / axes[0] ** 2, 1.0 / axes[1] ** 2, 1.0 / axes[2] ** 2)
    hit = cast((x, y, z), pose.toward, inverse)
    px, py, pz = (start + hit.t * along for start, along in zip((x, y, z), pose.toward, strict=True))
    strands = torch.sin(34.0 * (px + 0.6 * py) / (0.5 + axes[1])) * (0.08 / region.step).clamp(max=1.0)
    normal = normalise((px * inverse[0] + 0.5 * strands, py * inverse[1], pz * inverse[2]))
    lit = illuminate(normal, light.head, light.head_up, light, 0.8 + 0.0 * px, cloth_wrap(px))
    colour = hair.colour * lit * (0.85 + 0.2 * strands)[:, None]
    colour = colour + light.direct_N3 * 0.06 * shine(normal, light.head_half, 3)[:, None]
    return KnotPaint(colour, cover((1.0 - hit.reach) * axes[0], region.step) * (hair.knot > 0.5).to(px.dtype))
