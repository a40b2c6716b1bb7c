"""Light on surfaces: one directional light and ambient light.

Legend: planes [N, H, W]; row scalars [N, 1, 1]; light colours [N, 3, H, W] or [N, 3, 1, 1], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import constant_like
from fusionray.data.synthetic.graphics.geometry import Pose, Vector, dot, normalise
from fusionray.data.synthetic.parameters.definitions import ParameterColumns

# Light that scatters inside skin reaches beyond the edge of a shadow, red the farthest.
_SKIN_WRAP = (0.42, 0.26, 0.18)
_CLOTH_WRAP = 0.25


@dataclass(frozen=True)
class Light:
    """The light of each row in one coordinate frame.

    `toward` points to the directional light, `half` midway between it and the viewer, `up` to the sky; `direct` and
    `ambient` are colours [N, 3, 1, 1].
    """

    toward: Vector
    half: Vector
    up: Vector
    direct: Tensor
    ambient: Tensor


def build_screen_light(attributes: ParameterColumns) -> Light:
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


def light_in_head_frame(light: Light, pose: Pose) -> Light:
    """Convert a light from the screen frame to the head frame."""
    return Light(
        pose.to_head(light.toward), pose.to_head(light.half), pose.to_head(light.up), light.direct, light.ambient
    )


def rotate_light(light: Light, cosine: Tensor, sine: Tensor) -> Light:
    """Rotate a screen light in the picture plane; `up` does not change."""
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
    """Return the light [N, 3, H, W] that skin with this unit normal reflects, divided by the colour of the skin.

    `openness` [N, H, W] in [0, 1] scales the ambient light and about half of the direct light.
    """
    wrap = constant_like(_SKIN_WRAP, openness).view(1, 3, 1, 1)
    # light * (facing + wrap) / (1 + wrap); factors that a row has in common are computed once per row.
    slope = light.direct / (1.0 + wrap)
    received = (dot(normal, light.toward)[:, None] * slope).add_(slope * wrap).clamp_(min=0.0)
    received.mul_((0.55 * openness).add_(0.45)[:, None])
    return received.addcmul_(light.ambient, _ambient_share(normal, light, openness)[:, None])


def light_cloth(normal: Vector, light: Light, openness: Tensor, albedo: Tensor) -> Tensor:
    """Return the light [N, 3, H, W] that hair or cloth of one colour [N, 3, 1, 1] reflects; see `light_skin`."""
    direct = dot(normal, light.toward).add_(_CLOTH_WRAP).mul_(1.0 / (1.0 + _CLOTH_WRAP)).clamp_(min=0.0)
    direct.mul_((0.55 * openness).add_(0.45))
    lit = direct[:, None] * (light.direct * albedo)
    return lit.addcmul_(light.ambient * albedo, _ambient_share(normal, light, openness)[:, None])


def _ambient_share(normal: Vector, light: Light, openness: Tensor) -> Tensor:
    return dot(normal, light.up).mul_(0.22).add_(0.86).mul_(openness)


def specular_cloth(normal: Vector, light: Light) -> Tensor:
    """Return the highlight of hair and cloth, (normal . half)^16."""
    return _eighth_power(normal, light).square_()


def specular_skin(normal: Vector, light: Light, narrow: float) -> Tensor:
    """Return the highlight of skin: a wide one, plus `narrow` times one of four times the exponent."""
    wide = _eighth_power(normal, light)
    return wide.square().square_().mul_(narrow).add_(wide, alpha=0.10)


def _eighth_power(normal: Vector, light: Light) -> Tensor:
    # The floor keeps higher powers out of the range of denormal numbers, which are very slow.
    return dot(normal, light.half).clamp_(min=0.1).square_().square_().square_()
