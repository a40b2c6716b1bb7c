"""The relief of the face: sockets, cheeks, chin, folds and wrinkles as slopes of a height map over the head.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.figure import Figure
from fusionray.data.synthetic.geometry import Vector, bump, ridge

Place = tuple[Tensor | float, Tensor | float]


@dataclass(frozen=True)
class Relief:
    """Slopes of the height over (|x|, y), and how much of the open sky each point still sees (1 = all)."""

    x: Tensor
    y: Tensor
    x_squared: Tensor
    y_squared: Tensor
    slope_x: Tensor
    slope_y: Tensor
    openness: Tensor

    def raise_hill(self, height: Tensor | float, centre: Place, spread: Place, shade: Tensor | float = 0.0) -> None:
        """Add a hill height * (1 - q)^2, q the squared elliptic distance, or a hollow; shade keeps light from it."""
        cx, cy, height_ = (_scalar(value, self.x) for value in (*centre, height))
        wx, wy = (1.0 / _scalar(value, self.x).square() for value in spread)
        # 1 - q = 1 - wx (x - cx)^2 - wy (y - cy)^2, multiplied out over the squares that all hills share.
        hill = (self.x_squared * -wx).add_(1.0 - wx * cx * cx - wy * cy * cy)
        hill.addcmul_(self.x, 2.0 * wx * cx).addcmul_(self.y_squared, -wy).addcmul_(self.y, 2.0 * wy * cy)
        hill.clamp_(min=0.0)
        steep_x, steep_y = -4.0 * height_ * wx, -4.0 * height_ * wy
        self.slope_x.addcmul_((self.x - cx).mul_(steep_x), hill)
        self.slope_y.addcmul_((self.y - cy).mul_(steep_y), hill)
        if not isinstance(shade, float) or shade:
            self.close(hill.square_().mul_(shade))

    def cut_groove(self, depth: Tensor, distance: Tensor, half_width: float, fade: Tensor) -> None:
        """Cut a groove along distance = 0 across |x|, fading by a plane in [0, 1]."""
        side = distance / half_width
        profile = side.square().neg_().add_(1.0).clamp_(min=0.0).mul_(fade)
        self.slope_x.addcmul_(side.mul_(profile), 4.0 * depth / half_width)
        self.close(profile.square_().mul_((6.0 * depth).clamp(max=0.5)))

    def close(self, share: Tensor) -> None:
        """Keep a share of the light away."""
        self.openness.mul_(share.neg_().add_(1.0))


def _scalar(value: Tensor | float, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else like.new_full((like.shape[0], 1, 1), value)


def build_relief(figure: Figure, point: Vector) -> Relief:
    """Build the relief of the whole face but the nose."""
    x, y = point[0].abs(), point[1]
    relief = Relief(x, y, x.square(), y.square(), torch.zeros_like(x), torch.zeros_like(x), torch.ones_like(x))
    head, who, how = figure.head, figure.who, figure.how
    age, full, lift = who["age"], who["cheek_fullness"], how["smile"].clamp(min=0.0)
    relief.raise_hill(-0.060, (head.eye_x * 0.93, head.eye_y - 0.05), (0.30, 0.23), 0.30)
    relief.raise_hill(0.026 + 0.012 * how["brow_furrow"], (0.22, head.eye_y - 0.27), (0.36, 0.15))
    relief.raise_hill(0.050 + 0.02 * who["cheek_width"] + 0.05 * lift, (0.45, 0.29 - 0.05 * lift), (0.32, 0.26))
    relief.raise_hill(0.030 * full - 0.016, (0.50, 0.58), (0.27, 0.30), (0.14 - 0.16 * full).clamp(min=0.0))
    relief.raise_hill(0.050, (0.0, head.mouth_y - 0.01), (0.42, 0.30))
    relief.raise_hill(0.055, (0.0, 0.88 * head.chin), (0.26, 0.19))
    relief.raise_hill(-0.040, (0.0, head.mouth_y + 0.17 + 0.14 * how["mouth_open"]), (0.25, 0.09), 0.22)
    relief.raise_hill(-0.010, (0.0, 0.5 * (head.nose_y + head.mouth_y) + 0.02), (0.07, 0.14), 0.10)
    relief.raise_hill(0.004 + 0.025 * age, (head.eye_x, head.eye_y + 0.17), (0.20, 0.075))
    _fold_cheeks(figure, relief)
    _wrinkle_brow(figure, relief)
    return relief


def _fold_cheeks(figure: Figure, relief: Relief) -> None:
    """Cut the folds from the nose's wings to the corners of the mouth, by age and smile."""
    who, smile = figure.who, figure.how["smile"]
    top, bottom = figure.head.nose_y - 0.08, figure.head.mouth_y + 0.10
    along = (relief.y - top).div_(bottom - top)
    start = 0.17 + 0.02 * who["nose_width"]
    end = 0.36 + 0.035 * who["mouth_width"] + 0.05 * smile
    curve = (along * (end - start)).add_(start).add_(along - along.square(), alpha=0.05)
    depth = 0.006 + 0.055 * who["age"] + 0.040 * smile.clamp(min=0.0)
    relief.cut_groove(depth, relief.x - curve, 0.075, ridge(along, 0.45, 0.62))


def _wrinkle_brow(figure: Figure, relief: Relief) -> None:
    """Fold the forehead across where brows are raised, and between the brows where they are drawn together."""
    age, raised, furrow = figure.who["age"], figure.how["brow_raise"].clamp(min=0.0), figure.how["brow_furrow"]
    middle = figure.head.eye_y - 0.52
    wave = torch.sin((relief.y - middle).mul_(62.0).add_(relief.x_squared, alpha=5.0))
    strength = bump(relief.x, relief.y, (0.0, middle), (0.52, 0.22))
    strength.mul_(0.55 * (age - 0.25).clamp(min=0.0) + 0.35 * raised * (0.4 + age))
    relief.slope_y.addcmul_(strength, wave)
    relief.close(wave.mul_(0.14).add_(0.14).mul_(strength))
    between = bump(relief.x, relief.y, (0.0, figure.head.eye_y - 0.25), (0.30, 0.17))
    relief.cut_groove(0.05 * furrow + 0.012 * age, relief.x - 0.065, 0.04, between)
