"""Hair styles: a table of sizes of a shell around the skull and of its opening for the face.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, 1, 1], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import constant_like
from fusionray.data.synthetic.graphics.geometry import Vector, length
from fusionray.data.synthetic.graphics.palette import hair_colour
from fusionray.data.synthetic.parameters.definitions import HAIR_STYLES, ParameterColumns
from fusionray.data.synthetic.shapes.head import HeadShape

# Below this height the sides of the opening for the face are vertical.
_MIDDLE = 0.34
_STYLE_COLUMNS = (
    "lift", "side", "back", "drop", "grow", "low", "front", "temple", "square", "slant", "curl", "density", "knot",
)  # fmt: skip
# Head units; `drop` is the lower end of the hair, `grow` how far `hair_length` moves it, `temple` in half widths
# of the head.
_STYLES: dict[str, tuple[float, ...]] = {
    "bald": (0.02, 0.02, 0.02, 0.30, 0.00, 0.95, -0.60, 1.13, 0.8, 0.0, 0.000, 0.00, 0.0),
    "buzz": (0.035, 0.03, 0.03, 0.30, 0.00, 0.95, -0.64, 1.10, 0.5, 0.0, 0.000, 0.86, 0.0),
    "side_part": (0.17, 0.07, 0.08, 0.34, 0.05, 0.95, -0.54, 1.11, 0.6, 1.0, 0.000, 1.00, 0.0),
    "fringe": (0.14, 0.11, 0.10, 0.36, 0.08, 0.95, -0.36, 1.04, 1.0, 0.1, 0.000, 1.00, 0.0),
    "bob": (0.13, 0.17, 0.14, 0.78, 0.25, 1.60, -0.46, 0.87, 0.9, 0.3, 0.000, 1.00, 0.0),
    "long": (0.12, 0.16, 0.15, 1.70, 0.60, 3.00, -0.60, 0.85, 0.6, 0.3, 0.000, 1.00, 0.0),
    "curly": (0.22, 0.26, 0.20, 0.95, 0.40, 1.50, -0.56, 0.97, 0.6, 0.2, 0.060, 1.00, 0.0),
    "afro": (0.36, 0.38, 0.30, 0.44, 0.15, 0.95, -0.58, 1.02, 0.5, 0.0, 0.045, 1.00, 0.0),
    "bun": (0.07, 0.045, 0.06, 0.28, 0.00, 0.95, -0.66, 1.08, 0.4, 0.0, 0.000, 1.00, 1.0),
    "ponytail": (0.08, 0.05, 0.06, 0.30, 0.00, 0.95, -0.62, 1.08, 0.5, 0.5, 0.000, 1.00, 2.0),
    "swept_back": (0.19, 0.07, 0.16, 0.52, 0.10, 1.05, -0.70, 1.05, 0.8, 0.0, 0.000, 1.00, 0.0),
}


def _style(attributes: ParameterColumns) -> dict[str, Tensor]:
    code = attributes["hair_style"].round().clamp(0, len(HAIR_STYLES) - 1).to(torch.int64)[:, 0, 0]
    table = constant_like(tuple(_STYLES[name] for name in HAIR_STYLES), attributes["hair_style"])[code]
    return dict(zip(_STYLE_COLUMNS, table.t().contiguous()[:, :, None, None].unbind(0), strict=True))


def hair_drawing_cost(attributes: ParameterColumns) -> Tensor:
    """Return a number [N, 1, 1] below 8 that is similar for rows whose hair costs similar time to draw."""
    style = _style(attributes)
    return style["drop"].round() + 3.0 * (style["curl"] > 0) + 2.0 * (style["knot"] > 0) - 1.0 * (style["density"] == 0)


@dataclass(frozen=True)
class HairShape:
    """Centre and half axes of the shell, its opening for the face, and the amounts of the style."""

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


def build_hair(attributes: ParameterColumns, head: HeadShape) -> HairShape:
    """Build the hair of each row around its head."""
    style = _style(attributes)
    # Short hair is widest above the ears, long hair at the cheeks.
    is_short = ((style["drop"] < 0.55) & (style["curl"] == 0)).to(head.crown.dtype)
    centre_y = -0.06 - 0.12 * is_short
    volume = 0.75 + 0.6 * attributes["hair_volume"]
    length = attributes["hair_length"] - 0.5
    return HairShape(
        centre_y=centre_y,
        half_width=head.half_width * _widest(head) + style["side"] * volume,
        up=head.crown + centre_y + style["lift"] * volume + 0.02,
        low=style["low"] - centre_y - 0.24 * is_short,
        half_depth=head.half_depth + 0.02 + style["back"] * volume,
        drop=style["drop"] + style["grow"] * length,
        front=style["front"] + 0.10 * length * (style["density"] > 0.9) + 0.02 * attributes["hair_part"],
        temple=style["temple"] * head.half_width,
        square=style["square"],
        slant=style["slant"] * attributes["hair_part"],
        curl=style["curl"] * (0.8 + 0.5 * attributes["hair_volume"]),
        density=style["density"],
        knot=style["knot"],
        part=attributes["hair_part"],
        colour=hair_colour(attributes["hair_tone"], attributes["hair_warmth"], attributes["hair_grey"]),
    )


def _widest(head: HeadShape) -> Tensor:
    """Return the largest ratio, under the hair, of the width of the skull to that of its ellipsoid."""
    heights = constant_like((-0.2, -0.4, -0.6, -0.8), head.crown)
    return head.width_at(heights).amax(dim=2, keepdim=True).clamp(min=1.0)


def face_opening(hair: HairShape, point: Vector) -> Tensor:
    """Return the distance from the middle of the opening for the face: < 1 is skin, > 1 is hair."""
    x, y, z = point
    side = (x.abs() + 0.8 * (-z).clamp_(min=0.0)).div_(hair.temple).square_()
    line = x * (0.16 * hair.slant / hair.half_width * (1.0 - 0.4 * hair.square)) + hair.front
    rise = (_MIDDLE - y).clamp_(min=0.0).div_(_MIDDLE - line).square_()
    corner = length(side, rise)
    return torch.lerp(side.add_(rise), corner, hair.square).sqrt_()


def knot_ellipsoid(hair: HairShape) -> tuple[Vector, Vector]:
    """Return the centre and half axes of the bun (knot = 1) or ponytail (knot = 2)."""
    is_tail = (hair.knot > 1.5).to(hair.knot.dtype)
    side = torch.where(hair.part < 0, -1.0, 1.0)
    centre = (0.66 * is_tail * side, 1.32 * is_tail - 1.17, -0.20 - 0.45 * is_tail)
    return centre, (0.30 - 0.05 * is_tail, 0.27 + 0.55 * is_tail, 0.30 - 0.05 * is_tail)
