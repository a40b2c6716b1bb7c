"""Hair: a near layer with strands, curls and sheen around the face, a far layer behind the neck, a bun or ponytail.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import is_needed
from fusionray.data.synthetic.graphics.geometry import (
    Pose,
    Vector,
    along_ray,
    edge_coverage,
    intersect_ellipsoid,
    line_coverage,
    normalise,
    smoothstep,
)
from fusionray.data.synthetic.graphics.light import light_cloth, specular_cloth
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow
from fusionray.data.synthetic.shapes.hairstyles import HairShape, face_opening, knot_ellipsoid
from fusionray.data.synthetic.shapes.person import PersonModel


@dataclass(frozen=True)
class HairLayers:
    """The hair in a window: colour [N, 3, H, W] and coverage [N, H, W] of both layers, and depth `t` [N, H, W]."""

    near_colour: Tensor
    near_alpha: Tensor
    far_colour: Tensor
    far_alpha: Tensor
    t: Tensor


def draw_hair(person: PersonModel, window: PixelWindow) -> HairLayers:
    """Draw the near and the far layer of the hair."""
    hair, light = person.hair, person.light
    (x, y, z), inverse, t, reach = _intersect_shell(hair, person.pose, window)
    curls = _curls(hair.curl, x, y, z)
    lump = curls * hair.curl
    lon = (x / (y.square().mul_(inverse[1]).neg_().add_(1.0).clamp_(min=0.05).sqrt_())).sub_(0.3 * hair.part)
    strands = _strands(lon, y, window, hair)
    body = edge_coverage((1.0 - reach).mul_(0.85).add_(lump), window.edge_width).mul_(hair.density)
    end = (hair.drop - hair.centre_y - y).add_(strands, alpha=0.05).add_(lump, alpha=0.6)
    body.mul_(edge_coverage(end, window.edge_width + 0.05))
    edge = face_opening(hair, (x, y + hair.centre_y, z)).sub_(1.0).add_(strands, alpha=0.025).add_(lump)
    near = edge_coverage(edge.mul_(0.45), window.edge_width + 0.012).mul_(body)
    rough = (6.0 * hair.curl).clamp(max=0.4) * curls
    normal = normalise(
        ((x * inverse[0]).add_(strands, alpha=0.22).add_(rough), (y * inverse[1]).sub_(rough), z * inverse[2])
    )
    colour = light_cloth(normal, light, rough + 0.86, hair.colour)
    parting = line_coverage(x - 0.34 * hair.part + 0.05 * y, 0.014, window.edge_width).mul_(smoothstep(y, -0.50, -0.62))
    tone = (0.20 * strands).add_(rough, alpha=0.25).add_(0.92).mul_(1.0 - parting.mul_(0.55 * hair.slant.abs()))
    gloss = (0.45 * strands).add_(0.55).mul_(specular_cloth(normal, light)) * (1.0 - 9.0 * hair.curl).clamp(min=0.3)
    sheen = (hair.colour.sqrt() * 0.22 + 0.02) * light.direct
    colour.mul_(tone[:, None]).addcmul_(sheen, gloss.clamp_(min=0.0)[:, None])
    shade = (0.10 * strands).add_(0.34).addcmul_(x, 0.10 * light.toward[0] / hair.half_width)
    far = shade[:, None] * (hair.colour * (light.direct + light.ambient))
    return HairLayers(colour, near, far, body, t)


def _intersect_shell(hair: HairShape, pose: Pose, window: PixelWindow) -> tuple[Vector, Vector, Tensor, Tensor]:
    """Return points on the shell (y from its centre), its inverse squared axes, and depth and reach of the rays."""
    x, y, z = pose.rays(window.u, window.v)
    origin = (x, y - hair.centre_y, z)
    across, up, deep, low = (1.0 / axis.square() for axis in (hair.half_width, hair.up, hair.half_depth, hair.low))
    # The upper and lower half join smoothly: the height at a typical depth is enough to choose one.
    below = (origin[1] + 0.7 * hair.half_depth * pose.toward[1]).mul_(50.0).clamp_(0.0, 1.0)
    inverse = (across, below.mul_(low - up).add_(up), deep)
    hit = intersect_ellipsoid(origin, pose.toward, inverse)
    return along_ray(origin, pose.toward, hit.t), inverse, hit.t, hit.reach


def _strands(lon: Tensor, y: Tensor, window: PixelWindow, hair: HairShape) -> Tensor:
    """Return the brightness of strands from the crown down, in [-1, 1]; strands thinner than a pixel fade."""
    bend = torch.sin(3.1 * y + 4.0 * hair.part).mul_(2.0)
    coarse = torch.sin((23.0 * lon).add_(bend)).mul_(0.45 * (0.12 / window.edge_width).clamp(max=1.0))
    fine = torch.sin((61.0 * lon).add_(bend, alpha=1.7).add_(y, alpha=5.0)).mul_(
        0.33 * (0.04 / window.edge_width).clamp(max=1.0)
    )
    finest = torch.sin((127.0 * lon).add_(y, alpha=9.0).add_(bend)).mul_(
        0.22 * (0.018 / window.edge_width).clamp(max=1.0)
    )
    return coarse.add_(fine).add_(finest)


def _curls(curl: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Return a field of lumps over the shell, in about [-1, 1]: waves with other waves in their phase."""
    if not is_needed(curl > 0):
        return torch.zeros_like(x)
    bend = torch.sin(7.0 * x - 11.0 * y).mul_(1.3).add_(torch.sin(13.0 * y + 9.0 * z))
    large = torch.sin((17.0 * x + 5.0 * y).add_(bend)).mul_(torch.sin((15.0 * y - 4.0 * x).sub_(bend)))
    small = torch.sin((37.0 * x + 8.0 * y).sub_(bend, alpha=1.6)).mul_(torch.sin((34.0 * y + 10.0 * z).add_(bend)))
    return large.mul_(0.75).add_(small, alpha=0.6)


@dataclass(frozen=True)
class KnotLayer:
    """A bun or ponytail, behind the head: colour [N, 3, H, W] and coverage [N, H, W]."""

    colour: Tensor
    alpha: Tensor


def draw_knot(person: PersonModel, window: PixelWindow) -> KnotLayer:
    """Draw the bun or ponytail; coverage is 0 in rows without one."""
    hair, light, pose = person.hair, person.light, person.pose
    centre, axes = knot_ellipsoid(hair)
    x, y, z = pose.rays(window.u, window.v)
    inverse = (1.0 / axes[0].square(), 1.0 / axes[1].square(), 1.0 / axes[2].square())
    origin = (x - centre[0], y - centre[1], z - centre[2])
    hit = intersect_ellipsoid(origin, pose.toward, inverse)
    px, py, pz = along_ray(origin, pose.toward, hit.t)
    strands = torch.sin((px + 0.4 * py) * (46.0 / (0.5 + axes[1]))).mul_((0.08 / window.edge_width).clamp(max=1.0))
    normal = normalise(((px * inverse[0]).add_(strands, alpha=0.5), py * inverse[1], pz * inverse[2]))
    colour = light_cloth(normal, light, torch.full_like(px, 0.8), hair.colour)
    colour.mul_((0.85 + 0.2 * strands)[:, None])
    colour.addcmul_(0.06 * light.direct, specular_cloth(normal, light)[:, None])
    return KnotLayer(
        colour, edge_coverage((1.0 - hit.reach) * axes[0], window.edge_width) * (hair.knot > 0.5).to(px.dtype)
    )
