"""Light on surfaces: one directed light, one that comes from everywhere.

Legend: planes [N, H, W]; row scalars [N, 1, 1]; light colours [N, 3, H, W] or [N, 3, 1, 1], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Pose, Vector, dot, normalise
from fusionray.data.synthetic.parameters import Columns

# Light scattered inside skin reaches past the shadow's edge, red the furthest.
_SKIN_WRAP = (0.42, 0.26, 0.18)
_CLOTH_WRAP = 0.25


@dataclass(frozen=True)
class Light:
    """The light of each row as one frame of axes sees it.

    `toward` points to the directed light, `half` midway between it and the viewer, `up` to the sky; `direct` and
    `ambient` are colours [N, 3, 1, 1].
    """

    toward: Vector
    half: Vector
    up: Vector
    direct: Tensor
    ambient: Tensor


def build_screen_light(attributes: Columns) -> Light:
    """Build the light in the screen frame from azimuth and elevation (degrees), intensity, ambient share and warmth."""
    azimuth = torch.deg2rad(attributes["light_azimuth"])
    elevation = torch.deg2rad(attributes["light_elevation"])
    roll = torch.deg2rad(attributes["roll"])
    x, y, z = azimuth.sin() * elevation.cos(), -elevation.sin(), azimuth.cos() * elevation.cos()
    toward = (x * roll.cos() + y * roll.sin(), y * roll.cos() - x * roll.sin(), z)
    zero = torch.zeros_like(x)
    half = normalise((toward[0], toward[1], toward[2] + 1.0))
    warmth = attributes["light_warmth"]
    tint = torch.stack((1.0 + 0.10 * warmth, 1.0 - 0.02 * warmth.abs(), 1.0 - 0.22 * warmth), dim=1)
    shade = torch.stack((1.0 - 0.05 * warmth, torch.ones_like(warmth), 1.0 + 0.08 * warmth), dim=1)
    direct = 1.22 * attributes["light_intensity"][:, None] * tint
    return Light(toward, half, (zero, zero - 1.0, zero), direct, attributes["ambient"][:, None] * shade)


def turn_to_head(light: Light, pose: Pose) -> Light:
    """Return a screen light as the head frame sees it."""
    return Light(
        pose.to_head(light.toward), pose.to_head(light.half), pose.to_head(light.up), light.direct, light.ambient
    )


def turn_by(light: Light, cosine: Tensor, sine: Tensor) -> Light:
    """Return a screen light as a frame sees it that is turned in the picture plane; its up stays up."""
    x, y, z = light.toward
    hx, hy, hz = light.half
    return Light(
        (x * cosine - y * sine, x * sine + y * cosine, z),
        (hx * cosine - hy * sine, hx * sine + hy * cosine, hz),
        light.up,
        light.direct,
        light.ambient,
    )


def light_skin(normal: Vector, light: Light, openness: Tensor) -> Tensor:
    """Return the light [N, 3, H, W] that skin with this unit normal sends back per unit of its colour.

    `openness` [N, H, W] in [0, 1] dims the ambient light fully and the direct light by half.
    """
    wrap = torch.tensor(_SKIN_WRAP, dtype=openness.dtype, device=openness.device).view(1, 3, 1, 1)
    # light * (facing + wrap) / (1 + wrap), with all that a row has in common taken out of the planes.
    slope = light.direct / (1.0 + wrap)
    received = (dot(normal, light.toward)[:, None] * slope).add_(slope * wrap).clamp_(min=0.0)
    received.mul_((0.55 * openness).add_(0.45)[:, None])
    return received.addcmul_(light.ambient, _sky(normal, light, openness)[:, None])


def light_cloth(normal: Vector, light: Light, openness: Tensor, albedo: Tensor) -> Tensor:
    """Return what hair or cloth of one colour [N, 3, 1, 1] sends back; as `light_skin`, one bend for all colours."""
    direct = dot(normal, light.toward).add_(_CLOTH_WRAP).mul_(1.0 / (1.0 + _CLOTH_WRAP)).clamp_(min=0.0)
    direct.mul_((0.55 * openness).add_(0.45))
    lit = direct[:, None] * (light.direct * albedo)
    return lit.addcmul_(light.ambient * albedo, _sky(normal, light, openness)[:, None])


def _sky(normal: Vector, light: Light, openness: Tensor) -> Tensor:
    return dot(normal, light.up).mul_(0.22).add_(0.86).mul_(openness)


def shine(normal: Vector, light: Light) -> Tensor:
    """Return the highlight of hair and cloth, (normal . half)^16."""
    return _eighth_power(normal, light).square_()


def gloss_skin(normal: Vector, light: Light, narrow: float) -> Tensor:
    """Return the highlight of skin: a wide one, and `narrow` parts of one four times as sharp."""
    wide = _eighth_power(normal, light)
    return wide.square().square_().mul_(narrow).add_(wide, alpha=0.10)


def _eighth_power(normal: Vector, light: Light) -> Tensor:
    # The floor keeps higher powers out of the denormal numbers, which are very slow.
    return dot(normal, light.half).clamp_(min=0.1).square_().square_().square_()
