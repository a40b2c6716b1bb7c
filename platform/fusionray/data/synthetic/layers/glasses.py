"""Glasses: two rims in a plane in front of the eyes, a bridge, and arms to the ears.

Legend: planes [N, H, W]; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import constant_like
from fusionray.data.synthetic.graphics.geometry import along_ray, edge_coverage, length, line_coverage, smoothstep
from fusionray.data.synthetic.graphics.palette import constant, hue_colour
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow
from fusionray.data.synthetic.parameters.definitions import GLASSES_KINDS
from fusionray.data.synthetic.shapes.person import PersonModel

# half width, half height, corner radius, rim half width, lens darkness, rim below the middle
_KINDS: dict[str, tuple[float, ...]] = {
    "none": (0.20, 0.20, 0.20, 0.020, 0.00, 1.0),
    "round": (0.245, 0.235, 0.225, 0.017, 0.04, 1.0),
    "square": (0.262, 0.200, 0.070, 0.026, 0.04, 1.0),
    "half_rim": (0.255, 0.175, 0.090, 0.022, 0.03, 0.0),
    "sunglasses": (0.285, 0.225, 0.130, 0.026, 0.88, 1.0),
}


@dataclass(frozen=True)
class GlassesShape:
    """Sizes of the glasses of each row, in head units; `worn` is 0 or 1, `below` is 0 for rims without a lower half."""

    half_x: Tensor
    half_y: Tensor
    corner: Tensor
    rim: Tensor
    dark: Tensor
    below: Tensor
    worn: Tensor
    centre: Tensor
    plane_z: Tensor


def paint_glasses(colour: Tensor, person: PersonModel, window: PixelWindow, depth: Tensor) -> Tensor:
    """Paint the glasses, where a row wears any, over the colour of a window, in place.

    `depth` [N, H, W] is the depth of the head. Returns the coverage [N, H, W] of frame and lens together.
    """
    shape, light, edge_width = _build_glasses(person), person.light, window.edge_width
    rays = person.pose.rays(window.u, window.v)
    t = (shape.plane_z - rays[2]).div_(person.pose.toward[2])
    x, y, _ = along_ray(rays, person.pose.toward, t)
    y.sub_(person.head.eye_y + 0.02)
    side = x.abs()
    outside = _lens_distance(shape, side, y)
    rims = line_coverage(outside, shape.rim, edge_width).mul_(
        torch.maximum(shape.below, edge_coverage(0.02 - y, edge_width))
    )
    bridge = line_coverage(y + 0.35 * shape.half_y - 0.25 * x.square(), 0.8 * shape.rim, edge_width)
    bridge.mul_(edge_coverage(shape.centre - shape.half_x - side, edge_width))
    arms = torch.maximum(_draw_arm(person, window, shape, depth, -1.0), _draw_arm(person, window, shape, depth, 1.0))
    frame = torch.maximum(torch.maximum(rims, bridge), arms).mul_(shape.worn)
    glass = edge_coverage(-outside, edge_width).mul_(shape.worn)
    lit = light.ambient + 0.6 * light.direct
    colour.lerp_(constant(x, 0.12, 0.11, 0.11) * lit, (glass * shape.dark)[:, None])
    streak = line_coverage(x - 0.7 * y + 0.3 * shape.centre * x.sign(), 0.05, edge_width).mul_(glass)
    colour.add_(streak.mul_(0.05)[:, None])
    colour.lerp_(_frame_colour(person.attributes["glasses_tone"]) * lit, frame[:, None])
    return torch.maximum(frame, glass.mul_(shape.dark))


def _build_glasses(person: PersonModel) -> GlassesShape:
    head, code = person.head, person.attributes["glasses"].round().clamp(0, len(GLASSES_KINDS) - 1)
    table = constant_like(tuple(_KINDS[kind] for kind in GLASSES_KINDS), code)
    half_x, half_y, corner, rim, dark, below = table[code[:, 0, 0].to(torch.int64)].t()[:, :, None, None].unbind(0)
    plane_z = head.depth_at(head.eye_x, head.eye_y) + 0.17
    worn = (code > 0).to(code.dtype)
    return GlassesShape(half_x, half_y, corner, rim, dark, below, worn, head.eye_x + 0.015, plane_z)


def _frame_colour(tone: Tensor) -> Tensor:
    value = 0.10 + 0.5 * smoothstep(tone, 0.4, 1.0)
    return hue_colour(torch.remainder(3.0 * tone, 1.0), smoothstep(tone, 0.3, 0.6) * 0.7, value)


def _lens_distance(shape: GlassesShape, side: Tensor, y: Tensor) -> Tensor:
    """Return the signed distance from a rounded box around the middle of the eye, > 0 outside."""
    qx = (side - shape.centre).abs_().sub_(shape.half_x - shape.corner)
    qy = y.abs().sub_(shape.half_y - shape.corner)
    inner = torch.maximum(qx, qy).clamp_(max=0.0)
    return length(qx.clamp_(min=0.0), qy.clamp_(min=0.0)).add_(inner).sub_(shape.corner)


def _draw_arm(person: PersonModel, window: PixelWindow, shape: GlassesShape, depth: Tensor, side: float) -> Tensor:
    """Return the coverage of one arm: a line from the rim to the ear, hidden where the head is in front of it."""
    head = person.head
    y = head.eye_y - 0.03
    begin = person.pose.to_screen((side * (shape.centre + shape.half_x), y, shape.plane_z))
    end = person.pose.to_screen((side * (head.half_width + 0.02), y, torch.full_like(y, -0.05)))
    du, dv = end[0] - begin[0], end[1] - begin[1]
    u, v = window.u - begin[0], window.v - begin[1]
    along = (u * du + v * dv).div_((du * du + dv * dv).clamp(min=1e-6)).clamp_(0.0, 1.0)
    away = length(u - along * du, v - along * dv)
    here = (along * (end[2] - begin[2])).add_(begin[2])
    return edge_coverage(0.9 * shape.rim - away, window.edge_width).mul_(smoothstep(here - depth, -0.05, 0.0))
