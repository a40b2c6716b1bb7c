"""The hills and hollows of a face: where they are, how high, how wide, and how much light they keep away.

Legend: N rows, K hills; row scalars [N, 1, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.head import HeadShape
from fusionray.data.synthetic.parameters import Columns

Hill = tuple[Tensor | float, Tensor | float, Tensor | float, float, float, Tensor | float]


def build_hills(identity: Columns, attributes: Columns, head: HeadShape) -> Tensor:
    """Return the coefficients [N, K, 10] of hills height * (1 - q)^2, q the squared elliptic distance over (|x|, y).

    1 - q = 1 - wx (x - cx)^2 - wy (y - cy)^2 is multiplied out, so that all hills share the squares of the planes:
    constant, of x^2, of x, of y^2, of y; then steepness and centre along x, the same along y; then the shade.
    """
    x, y, height, half_x, half_y, shade = _lay_out(identity, attributes, head).unbind(2)
    wx, wy = 1.0 / half_x.square(), 1.0 / half_y.square()
    columns = (
        1.0 - wx * x * x - wy * y * y, -wx, 2.0 * wx * x, -wy, 2.0 * wy * y,
        -4.0 * height * wx, x, -4.0 * height * wy, y, shade,
    )  # fmt: skip
    return torch.stack(columns, dim=2)


def _lay_out(who: Columns, how: Columns, head: HeadShape) -> Tensor:
    """Return x, y, height, half width, half height, shade of each hill, [N, K, 6]."""
    age, full, lift = who["age"], who["cheek_fullness"], how["smile"].clamp(min=0.0)
    under_lip = head.mouth_y + 0.17 + 0.14 * how["mouth_open"]
    hollow = (0.14 - 0.16 * full).clamp(min=0.0)
    hills: tuple[Hill, ...] = (
        (head.eye_x * 0.93, head.eye_y - 0.05, -0.060, 0.30, 0.23, 0.30),
        (0.22, head.eye_y - 0.27, 0.026 + 0.012 * how["brow_furrow"], 0.36, 0.15, 0.0),
        (0.45, 0.29 - 0.05 * lift, 0.050 + 0.02 * who["cheek_width"] + 0.05 * lift, 0.32, 0.26, 0.0),
        (0.50, 0.58, 0.030 * full - 0.016, 0.27, 0.30, hollow),
        (0.0, head.mouth_y - 0.01, 0.050, 0.42, 0.30, 0.0),
        (0.0, 0.88 * head.chin, 0.055, 0.26, 0.19, 0.0),
        (0.0, under_lip, -0.040, 0.25, 0.09, 0.22),
        (head.eye_x, head.eye_y + 0.17, 0.004 + 0.025 * age, 0.20, 0.075, 0.0),
    )
    zero = torch.zeros_like(age)
    rows = [torch.cat([zero + value for value in hill], dim=2) for hill in hills]
    return torch.cat(rows, dim=1)
