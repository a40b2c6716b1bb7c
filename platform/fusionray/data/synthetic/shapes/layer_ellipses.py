"""Bounds of the layers of a person: one ellipse on the screen for each layer.

Legend: row scalars [N, 1, 1]; ellipses (u, v, half_u, half_v) [N, 4] in screen units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.geometry import Pose, Vector
from fusionray.data.synthetic.shapes.hairstyles import HairShape, knot_ellipsoid
from fusionray.data.synthetic.shapes.head import HeadShape
from fusionray.data.synthetic.shapes.nose_and_mouth import MouthShape

# A circle in the body frame that holds the neck and the skin inside a neckline: height of its centre, and radius.
NECK_MIDDLE = 1.05
NECK_REACH = 0.80


def build_ellipses(
    pose: Pose, head: HeadShape, mouth: MouthShape, hair: HairShape, body_angle: Tensor
) -> dict[str, Tensor]:
    """Build the ellipses by the name of the layer; `body_angle` as in PersonModel."""
    zero = torch.zeros_like(head.crown)

    def on_face(y: Tensor, half_u: float, half_v: float) -> Tensor:
        return _around(pose, (zero, y, head.depth_at(zero, y)), zero + half_u, zero + half_v)

    knot_centre, knot_axes = knot_ellipsoid(hair)
    ellipses = {
        "head": _head(pose, head),
        "hair": _hair(pose, hair),
        "neck": _neck(body_angle),
        "knot": _around(pose, knot_centre, knot_axes[1] + 0.02, knot_axes[1] + 0.02),
        "jaw": on_face(0.5 * (head.eye_y + head.chin), 0.95, 0.70),
        "eyes": on_face(head.eye_y, 0.78, 0.29),
        "brows": on_face(head.eye_y - 0.29, 0.78, 0.28),
        "mouth": on_face(mouth.y + 0.10, 0.50, 0.40),
        "nose": on_face(0.5 * (head.eye_y + head.nose_y), 0.36, 0.56),
        "glasses": _around(pose, (zero, head.eye_y, zero + 0.55), zero + 1.0, zero + 0.45),
    }
    for name, side in (("left_ear", -1.0), ("right_ear", 1.0)):
        ellipses[name] = _around(pose, head.ear_centre(side), zero + 0.24, zero + 0.33)
    return ellipses


def _around(pose: Pose, point: Vector, half_u: Tensor, half_v: Tensor) -> Tensor:
    u, v, _ = pose.to_screen(point)
    return _row(u, v, half_u, half_v)


def _head(pose: Pose, head: HeadShape) -> Tensor:
    low, up = head.chin + 0.02, head.crown + 0.02
    half_u = _half_width(pose, 1.10 * head.half_width, head.half_depth) + 0.02
    return _row(torch.zeros_like(low), 0.5 * (low - up), half_u, 0.5 * (low + up))


def _hair(pose: Pose, hair: HairShape) -> Tensor:
    cosine, sine = pose.down[1], pose.toward[1]
    margin = 0.03 + 1.4 * hair.curl
    half_u = _half_width(pose, hair.half_width, hair.half_depth) + margin
    up = ((hair.up * cosine).square() + (hair.half_depth * sine).square()).sqrt() - hair.centre_y * cosine + margin
    # The lower end of the shell is a horizontal cut: pitch moves its front, or its sides, below its middle.
    swing = (-sine).clamp(min=0.0) + (sine * pose.right[2].abs()).clamp(min=0.0)
    low = (hair.drop + 0.08) * cosine + hair.half_depth * swing + margin
    # Long hair ends in corners, which the ellipse must contain.
    spare = torch.where(hair.drop > 0.55, 1.25, 1.0)
    return _row(torch.zeros_like(low), 0.5 * (low - up), spare * half_u, spare * 0.5 * (low + up))


def _half_width(pose: Pose, half_width: Tensor, half_depth: Tensor) -> Tensor:
    """Return the half width of a rotated ellipsoid on the screen."""
    return ((half_width * pose.right[0]).square() + (half_depth * pose.right[2]).square()).sqrt()


def _neck(angle: Tensor) -> Tensor:
    """Return the circle of the neck, which is below the head in the body frame."""
    half = torch.full_like(angle, NECK_REACH)
    return _row(NECK_MIDDLE * angle.sin(), NECK_MIDDLE * angle.cos(), half, half)


def _row(u: Tensor, v: Tensor, half_u: Tensor, half_v: Tensor) -> Tensor:
    return torch.cat((u, v, half_u, half_v), dim=2)[:, 0]
