"""The shapes of nose and mouth in head units, from identity and expression.

Legend: row scalars [N, 1, 1]; the nose's four bodies are a second dimension, [N, 4, 1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.geometry import Vector
from fusionray.data.synthetic.parameters.definitions import ParameterColumns
from fusionray.data.synthetic.shapes.head import HeadShape


@dataclass(frozen=True)
class NoseShape:
    """Ellipsoids for bridge, tip and wings: centres, half axes, and a lean backwards of the upper end (dz per dy).

    `tip` is the foremost point of the nose; `half_width` is the distance from the middle to the outside of a wing.
    """

    centre: Vector
    axes: Vector
    lean: Tensor
    tip: Vector
    half_width: Tensor


def build_nose(identity: ParameterColumns, head: HeadShape) -> NoseShape:
    """Build the nose on the surface of the face."""
    zero = torch.zeros_like(head.nose_y)
    base = head.depth_at(zero, head.nose_y)
    out = 0.175 + 0.062 * identity["nose_projection"]
    width = 0.126 + 0.036 * identity["nose_width"]
    tip = 0.092 + 0.024 * identity["nose_tip"] + 0.012 * identity["nose_width"]
    tip_y, tip_z = head.nose_y - 0.03, base + out - 0.5 * tip
    root_y = head.eye_y - 0.10
    root_z = head.depth_at(zero, root_y)
    front_z = base + out - 0.02
    length = head.nose_y - root_y
    bridge = 0.074 + 0.024 * identity["nose_bridge"]
    wing, wing_height = 0.36 * width + 0.030, 0.068 + 0.010 * identity["nose_tip"]
    wing_x, wing_y, wing_z = width - 0.25 * wing, head.nose_y + 0.005, base + 0.30 * out - 0.02
    return NoseShape(
        centre=(
            _bodies(zero, zero, -wing_x, wing_x),
            _bodies(0.5 * (root_y + head.nose_y), tip_y, wing_y, wing_y),
            _bodies(0.5 * (root_z + 0.02 + front_z) - 0.105, tip_z, wing_z, wing_z),
        ),
        axes=(
            _bodies(bridge, tip, wing, wing),
            _bodies(0.62 * length, 0.88 * tip, wing_height, wing_height),
            _bodies(0.10 + zero, 0.95 * tip, 0.095 + zero, 0.095 + zero),
        ),
        lean=_bodies((front_z - root_z - 0.02) / length, zero, zero, zero),
        tip=(zero, tip_y, tip_z + 0.95 * tip),
        half_width=width,
    )


def _bodies(bridge: Tensor, tip: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return torch.stack((bridge, tip, left, right), dim=1)


@dataclass(frozen=True)
class MouthShape:
    """Sizes of the mouth; `lift` raises the corners, `gap_up` and `gap_down` open the lips from the middle line."""

    half_width: Tensor
    y: Tensor
    lift: Tensor
    upper: Tensor
    lower: Tensor
    gap_up: Tensor
    gap_down: Tensor

    def corner_y(self) -> Tensor:
        """Return the height of the corners."""
        return self.y - 0.55 * self.lift


def build_mouth(identity: ParameterColumns, attributes: ParameterColumns, head: HeadShape) -> MouthShape:
    """Build the mouth: a smile widens it, lifts its corners and shows teeth; a frown narrows and lowers it."""
    smile, open_ = attributes["smile"], attributes["mouth_open"]
    glad = smile.clamp(min=0.0)
    stretch = 1.0 + 0.26 * glad - 0.06 * (-smile).clamp(min=0.0) - 0.14 * open_
    return MouthShape(
        half_width=(0.255 + 0.042 * identity["mouth_width"]) * stretch,
        y=head.mouth_y,
        lift=0.165 * smile,
        upper=(0.062 + 0.030 * identity["upper_lip"]) * (1.0 - 0.25 * glad),
        lower=(0.080 + 0.034 * identity["lower_lip"]) * (1.0 - 0.15 * glad),
        gap_up=0.030 * open_ + 0.012 * glad,
        gap_down=0.225 * open_ + 0.055 * (glad - 0.25).clamp(min=0.0),
    )
