"""Beard and moustache, painted on the lower face as hairs over shadow.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.figure import Figure
from fusionray.data.synthetic.geometry import bump, ridge, smooth
from fusionray.data.synthetic.palette import hair_colour


def paint_beard(canvas: Canvas, figure: Figure) -> None:
    """Paint the beard (chin alone up to the sideburns) and the moustache, before the lips are painted over them."""
    who, x, y = figure.who, canvas.x, canvas.y
    hairs = torch.sin((113.0 * x).add_(torch.sin(23.0 * y), alpha=4.0))
    hairs.mul_(torch.sin((71.0 * y).add_(torch.sin(29.0 * x), alpha=3.0))).mul_((0.024 / canvas.step).clamp(max=1.0))
    amount = torch.maximum(_beard(figure, x, y, hairs) * who["beard"], _moustache(figure, x, y) * who["moustache"])
    grey = (who["age"] - 0.5).clamp(min=0.0) * 1.7
    colour = (0.62 + 0.26 * hairs)[:, None] * hair_colour(who["brow_tone"], who["brow_warmth"], grey)
    solid = amount.mul_(hairs.mul_(0.24).add_(0.99)).clamp_(0.0, 0.95)
    canvas.paint(colour, solid.mul_(smooth(canvas.visible, 0.0, 0.2)))


def _beard(figure: Figure, x: Tensor, y: Tensor, hairs: Tensor) -> Tensor:
    mouth, extent = figure.mouth, figure.who["beard_extent"]
    side = x.abs().div_(figure.head.half_width)
    # The upper border runs from the corner of the mouth up the cheek; a full beard's reaches the ear.
    border = side.square().mul_(-0.62 * extent).add_(mouth.y + 0.10).addcmul_(side, 0.22 * (1.0 - extent))
    full = smooth((y - border).add_(hairs, alpha=0.03), -0.07, 0.10)
    outside = smooth((side - 0.55 * extent).add_(hairs, alpha=0.04), 0.30, 0.46)
    full.mul_(outside.mul_(smooth(extent, 0.55, 0.75) - 1.0).add_(1.0))
    under_lip = bump(x, y, (0.0, mouth.y + mouth.lower + mouth.gap_down), (0.20, 0.075))
    return full.mul_(under_lip.mul_(-0.55).add_(1.0))


def _moustache(figure: Figure, x: Tensor, y: Tensor) -> Tensor:
    mouth = figure.mouth
    square = (x / mouth.half_width).square_()
    above = (y - mouth.y + mouth.gap_up + mouth.upper).addcmul_(0.45 - square, mouth.lift, value=-1.0)
    above.add_(square, alpha=-0.10)
    hair = bump(above, x, (-0.025, 0.0), (0.115, 1.22 * mouth.half_width)).sqrt_()
    return hair.mul_(ridge(x, 0.0, 0.05).mul_(-0.5).add_(1.0))
