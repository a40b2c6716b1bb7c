"""Beard and moustache: hairs over a shadow, painted on the lower face.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.canvas import Canvas
from fusionray.data.synthetic.graphics.geometry import bump, ridge, smoothstep
from fusionray.data.synthetic.graphics.palette import hair_colour
from fusionray.data.synthetic.shapes.person import PersonModel


def paint_beard(canvas: Canvas, person: PersonModel) -> None:
    """Paint beard and moustache; call it before the lips, which are painted over them."""
    identity, x, y = person.identity, canvas.x, canvas.y
    hairs = torch.sin((113.0 * x).add_(torch.sin(23.0 * y), alpha=4.0))
    hairs.mul_(torch.sin((71.0 * y).add_(torch.sin(29.0 * x), alpha=3.0))).mul_(
        (0.024 / canvas.edge_width).clamp(max=1.0)
    )
    amount = torch.maximum(
        _beard(person, x, y, hairs) * identity["beard"], _moustache(person, x, y) * identity["moustache"]
    )
    grey = (identity["age"] - 0.5).clamp(min=0.0) * 1.7
    colour = (0.62 + 0.26 * hairs)[:, None] * hair_colour(identity["brow_tone"], identity["brow_warmth"], grey)
    solid = amount.mul_(hairs.mul_(0.24).add_(0.99)).clamp_(0.0, 0.95)
    canvas.paint(colour, solid.mul_(smoothstep(canvas.visible, 0.0, 0.2)))


def _beard(person: PersonModel, x: Tensor, y: Tensor, hairs: Tensor) -> Tensor:
    mouth, extent = person.mouth, person.identity["beard_extent"]
    side = x.abs().div_(person.head.half_width)
    # The upper border runs from the corner of the mouth up the cheek; in a full beard it reaches the ear.
    border = side.square().mul_(-0.62 * extent).add_(mouth.y + 0.10).addcmul_(side, 0.22 * (1.0 - extent))
    full = smoothstep((y - border).add_(hairs, alpha=0.03), -0.07, 0.10)
    outside = smoothstep((side - 0.55 * extent).add_(hairs, alpha=0.04), 0.30, 0.46)
    full.mul_(outside.mul_(smoothstep(extent, 0.55, 0.75) - 1.0).add_(1.0))
    under_lip = bump(x, y, (0.0, mouth.y + mouth.lower + mouth.gap_down), (0.20, 0.075))
    return full.mul_(under_lip.mul_(-0.55).add_(1.0))


def _moustache(person: PersonModel, x: Tensor, y: Tensor) -> Tensor:
    mouth = person.mouth
    square = (x / mouth.half_width).square_()
    above = (y - mouth.y + mouth.gap_up + mouth.upper).addcmul_(0.45 - square, mouth.lift, value=-1.0)
    above.add_(square, alpha=-0.10)
    hair = bump(above, x, (-0.025, 0.0), (0.115, 1.22 * mouth.half_width)).sqrt_()
    return hair.mul_(ridge(x, 0.0, 0.05).mul_(-0.5).add_(1.0))
