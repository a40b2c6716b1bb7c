"""Glasses: two rims in a plane before the eyes, a bridge, arms back to the ears.

Legend: planes [N, H, W]; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Pose, Region, cover, smooth, stroke
from fusionray.data.synthetic.head import HeadShape
from fusionray.data.synthetic.light import Light
from fusionray.data.synthetic.palette import constant, hue_colour
from fusionray.data.synthetic.parameters import GLASSES_KINDS, Columns

# half width, half height, corner radius, rim half width, lens darkness, rim below the middle
_KINDS: dict[str, tuple[float, ...]] = {
    "none": (0.20, 0.20, 0.20, 0.020, 0.00, 1.0),
    "round": (0.245, 0.235, 0.225, 0.017, 0.04, 1.0),
    "square": (0.262, 0.200, 0.070, 0.026, 0.04, 1.0),
    "half_rim": (0.255, 0.175, 0.090, 0.022, 0.03, 0.0),
    "sunglasses": (0.285, 0.225, 0.130, 0.026, 0.93, 1.0),
}
assert tuple(_KINDS) == GLASSES_KINDS


def paint_glasses(colour: Tensor, attributes: Columns, shape: HeadShape, pose: Pose, light: Light, region: Region,
                  depth: Tensor) -> tuple[Tensor, Tensor]:
    """Paint the glasses of the rows that wear any over a window's colour.

    `depth` is that of the head there. Returns the colour and the coverage [N, h, w] of frame and lens together.
    """
    code = attributes["glasses"].round().clamp(0, len(GLASSES_KINDS) - 1).to(torch.int64)[:, 0, 0]
    table = torch.tensor(list(_KINDS.values()), dtype=depth.dtype, device=depth.device)[code]
    half_x, half_y, corner, rim, dark, below = (table[:, index, None, None] for index in range(6))
    worn = (code > 0).to(depth.dtype)[:, None, None]
    plane_z = shape.depth_at(shape.eye_x, shape.eye_y) + 0.17
    zero = torch.zeros_like(region.u[:, :1, :1])
    origin = pose.to_head((region.u, region.v, zero))
    t = (plane_z - origin[2]) / pose.toward[2]
    signed_x, y = origin[0] + t * pose.toward[0], origin[1] + t * pose.toward[1] - shape.eye_y - 0.02
    x = signed_x.abs()
    centre = shape.eye_x + 0.015
    qx, qy = (x - centre).abs() - half_x + corner, y.abs() - half_y + corner
    outside = (qx.clamp(min=0.0) ** 2 + qy.clamp(min=0.0) ** 2).sqrt() + torch.maximum(qx, qy).clamp(max=0.0) - corner
    rims = stroke(outside, rim, region.step) * torch.maximum(below, cover(-y + 0.02, region.step))
    bridge = stroke(y + 0.35 * half_y - 0.25 * x * x, 0.8 * rim, region.step) * cover(centre - half_x - x, region.step)
    arms = torch.maximum(*(_arm(pose, region.u, region.v, side, centre + half_x, plane_z, shape, rim, region.step,
                                depth) for side in (-1.0, 1.0)))
    frame = torch.maximum(torch.maximum(rims, bridge), arms) * worn
    lens = cover(-outside, region.step) * dark * worn
    tone = attributes["glasses_tone"]
    vivid = hue_colour(torch.remainder(3.0 * tone, 1.0), smooth(tone, 0.3, 0.6) * 0.7, 0.10 + 0.5 * smooth(tone, 0.4, 1.0))
    lit = light.ambient_N3 + 0.6 * light.direct_N3
    tint = constant(x, 0.12, 0.11, 0.11) * lit
    colour = torch.lerp(colour, tint, lens[:, None])
    streak = cover(-outside, region.step) * stroke(signed_x - 0.7 * y + 0.3 * centre * signed_x.sign(), 0.05, region.step)
    colour = colour + (0.05 * streak * worn)[:, None]
    colour = torch.lerp(colour, vivid * lit, frame[:, None])
    return colour, torch.maximum(frame, lens)


def _arm(pose: Pose, u: Tensor, v: Tensor, side: float, start_x: Tensor, plane_z: Tensor, shape: HeadShape,
         rim: Tensor, step: Tensor, depth: Tensor) -> Tensor:
    """Return the coverage of one arm: a line from the rim to the ear, hidden where the head lies before it."""
    y = shape.eye_y - 0.03
    begin = pose.to_screen((side * start_x, y, plane_z))
    end = pose.to_screen((side * (shape.half_width + 0.02), y, torch.full_like(y, -0.05)))
    du, dv = end[0] - begin[0], end[1] - begin[1]
    length = (du * du + dv * dv).clamp(min=1e-6)
    along = (((u - begin[0]) * du + (v - begin[1]) * dv) / length).clamp(0.0, 1.0)
    away = ((u - begin[0] - along * du) ** 2 + (v - begin[1] - along * dv) ** 2).sqrt()
    here = begin[2] + along * (end[2] - begin[2])
    return cover(0.9 * rim - away, step) * smooth(here - depth, -0.05, 0.0)
