"""Light on surfaces: one directed light, one that comes from everywhere.

Legend: planes [N, H, W]; light colours [N, 3, H, W] or [N, 3, 1, 1], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Pose, Vector, dot, normalise
from fusionray.data.synthetic.parameters import Columns

# Light scattered inside skin reaches past the shadow's edge, red the furthest.
_SKIN_WRAP = (0.42, 0.26, 0.18)
_CLOTH_WRAP = (0.25, 0.25, 0.25)


@dataclass(frozen=True)
class Light:
    """The light of each row: direction in the screen and head frames, colours, and where up is for the head."""

    screen: Vector
    head: Vector
    head_half: Vector
    head_up: Vector
    direct_N3: Tensor
    ambient_N3: Tensor


def build_light(attributes: Columns, pose: Pose) -> Light:
    """Build the light from azimuth and elevation (degrees), intensity, ambient share and warmth."""
    azimuth = torch.deg2rad(attributes["light_azimuth"])
    elevation = torch.deg2rad(attributes["light_elevation"])
    roll = torch.deg2rad(attributes["roll"])
    x, y, z = azimuth.sin() * elevation.cos(), -elevation.sin(), azimuth.cos() * elevation.cos()
    screen = (x * roll.cos() + y * roll.sin(), y * roll.cos() - x * roll.sin(), z)
    head = pose.to_head(screen)
    half = normalise((head[0] + pose.toward[0], head[1] + pose.toward[1], head[2] + pose.toward[2]))
    up = (-pose.down[0], -pose.down[1], -pose.down[2])
    warmth = attributes["light_warmth"]
    tint = torch.stack((1.0 + 0.10 * warmth, 1.0 - 0.02 * warmth.abs(), 1.0 - 0.22 * warmth), dim=1)
    cool = torch.stack((1.0 - 0.05 * warmth, torch.ones_like(warmth), 1.0 + 0.08 * warmth), dim=1)
    return Light(screen, head, half, up, 1.12 * attributes["light_intensity"][:, None] * tint,
                 attributes["ambient"][:, None] * cool)


def illuminate(normal: Vector, direction: Vector, up: Vector, light: Light, occlusion: Tensor, wrap: Tensor) -> Tensor:
    """Return the light [N, 3, H, W] that a surface with this unit normal sends back per unit of its colour.

    `occlusion` dims the ambient light fully and the direct light by half; `wrap` [1, 3, 1, 1] bends light round edges.
    """
    facing = dot(normal, direction)[:, None]
    # light * (facing + wrap) / (1 + wrap), with all that a row has in common taken out of the planes.
    slope = light.direct_N3 / (1.0 + wrap)
    received = (facing * slope).add_(slope * wrap).clamp_(min=0.0)
    received.mul_((0.55 * occlusion).add_(0.45)[:, None])
    sky = (0.22 * dot(normal, up)).add_(0.86).mul_(occlusion)
    return received.addcmul_(light.ambient_N3, sky[:, None])


def skin_wrap(like: Tensor) -> Tensor:
    """Return how far light bends round skin, [1, 3, 1, 1]."""
    return torch.tensor(_SKIN_WRAP, dtype=like.dtype, device=like.device).view(1, 3, 1, 1)


def cloth_wrap(like: Tensor) -> Tensor:
    """Return how far light bends round hair and cloth, [1, 3, 1, 1]."""
    return torch.tensor(_CLOTH_WRAP, dtype=like.dtype, device=like.device).view(1, 3, 1, 1)


def shine(normal: Vector, half: Vector, doublings: int) -> Tensor:
    """Return the mirror-like highlight (normal . half)^(2^doublings)."""
    value = dot(normal, half).clamp(min=0.0)
    for _ in range(doublings):
        value = value * value
    return value
