"""The hills and hollows of a face: position, height, size, and how much ambient light they block.

Legend: N rows, K hills; row scalars [N, 1, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.parameters.definitions import ParameterColumns
from fusionray.data.synthetic.shapes.head import HeadShape

Hill = tuple[Tensor | float, Tensor | float, Tensor | float, float, float, Tensor | float]


def build_hills(identity: ParameterColumns, attributes: ParameterColumns, head: HeadShape) -> Tensor:
    """Return the coefficients [N, K, 10] of hills height * (1 - q)^2, q the squared elliptic distance over (|x|, y).

    1 - q = 1 - wx (x - cx)^2 - wy (y - cy)^2 is expanded, so that all hills share the squares of the planes. The ten:
    constant, of x^2, of x, of y^2, of y; steepness and centre along x; the same along y; blocked share of light.
    """
    x, y, height, half_x, half_y, shade = _place_hills(identity, attributes, head).unbind(2)
    wx, wy = 1.0 / half_x.square(), 1.0 / half_y.square()
    columns = (
        1.0 - wx * x * x - wy * y * y, -wx, 2.0 * wx * x, -wy, 2.0 * wy * y,
        -4.0 * height * wx, x, -4.0 * height * wy, y, shade,
    )  # fmt: skip
    return torch.stack(columns, dim=2)


def _place_hills(identity: ParameterColumns, attributes: ParameterColumns, head: HeadShape) -> Tensor:
    """Return x, y, height, half width, half height, shade of each hill, [N, K, 6]."""
    age, full, lift = identity["age"], identity["cheek_fullness"], attributes["smile"].clamp(min=0.0)
    under_lip = head.mouth_y + 0.17 + 0.14 * attributes["mouth_open"]
    hollow = (0.14 - 0.16 * full).clamp(min=0.0)
    hills: tuple[Hill, ...] = (
        (head.eye_x * 0.93, head.eye_y - 0.05, -0.060, 0.30, 0.23, 0.30),
        (0.22, head.eye_y - 0.27, 0.026 + 0.012 * attributes["brow_furrow"], 0.36, 0.15, 0.0),
        (0.45, 0.29 - 0.05 * lift, 0.050 + 0.02 * identity["cheek_width"] + 0.05 * lift, 0.32, 0.26, 0.0),
        (0.50, 0.58, 0.030 * full - 0.016, 0.27, 0.30, hollow),
        (0.0, head.mouth_y - 0.01, 0.050, 0.42, 0.30, 0.0),
        (0.0, 0.88 * head.chin, 0.055, 0.26, 0.19, 0.0),
        (0.0, under_lip, -0.040, 0.25, 0.09, 0.22),
        (head.eye_x, head.eye_y + 0.17, 0.004 + 0.025 * age, 0.20, 0.075, 0.0),
    )
    zero = torch.zeros_like(age)
    rows = [torch.cat([zero + value for value in hill], dim=2) for hill in hills]
    return torch.cat(rows, dim=1)
