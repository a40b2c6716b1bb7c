"""Beard and moustache, painted on the lower face as hairs over shadow.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

import torch

from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.geometry import bump, smooth
from fusionray.data.synthetic.head import HeadShape
from fusionray.data.synthetic.mouth import MouthShape
from fusionray.data.synthetic.palette import hair_colour
from fusionray.data.synthetic.parameters import Columns


def paint_beard(canvas: Canvas, identity: Columns, shape: HeadShape, mouth: MouthShape) -> None:
    """Paint the beard (chin alone up to the sideburns) and the moustache before the lips are painted."""
    x, y = canvas.x.abs(), canvas.y
    extent = identity["beard_extent"]
    side = x / shape.half_width
    hairs = torch.sin(83.0 * canvas.x + 21.0 * y) * torch.sin(47.0 * y - 31.0 * canvas.x)
    hairs = hairs * (0.035 / canvas.step).clamp(max=1.0)
    # The upper border runs from the corner of the mouth up the cheek; a full beard's reaches the ear.
    border = mouth.y + 0.10 - 0.62 * side * side * extent + 0.22 * (1.0 - extent) * side
    full = smooth(y - border + 0.03 * hairs, -0.07, 0.10)
    chin_only = 1.0 - smooth(side - 0.55 * extent + 0.04 * hairs, 0.30, 0.46) * (1.0 - smooth(extent, 0.55, 0.75))
    under_lip = bump(canvas.x, y, (0.0, mouth.y + mouth.lower + mouth.gap_down), (0.20, 0.075))
    beard = full * chin_only * (1.0 - 0.55 * under_lip)
    lift = mouth.lift * (0.45 - (canvas.x / mouth.half_width) ** 2)
    top = mouth.y + lift - mouth.gap_up - mouth.upper
    lip = y - top + 0.10 * (canvas.x / mouth.half_width) ** 2 * -1.0
    moustache = bump(lip, x, (-0.025, 0.0), (0.115, 1.22 * mouth.half_width)) ** 0.5
    moustache = moustache * (1.0 - 0.5 * bump(canvas.x, canvas.x * 0.0, (0.0, 0.0), (0.05, 1.0)))
    amount = torch.maximum(beard * identity["beard"], moustache * identity["moustache"])
    grey = (identity["age"] - 0.5).clamp(min=0.0) * 1.7
    colour = hair_colour(identity["brow_tone"], identity["brow_warmth"], grey) * (0.62 + 0.30 * hairs)[:, None]
    solid = (1.15 * amount * (0.86 + 0.26 * hairs)).clamp(0.0, 0.95)
    canvas.paint(colour, solid * smooth(canvas.visible, 0.0, 0.2))
