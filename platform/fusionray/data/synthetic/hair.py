"""Hair drawn: a near layer with strands, curls and sheen round the face, a far layer behind the neck, a knot.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.figure import Figure
from fusionray.data.synthetic.geometry import Pose, Vector, cast, cover, normalise, smooth, stroke, travel
from fusionray.data.synthetic.hairstyles import HairShape, face_opening, knot_place
from fusionray.data.synthetic.light import light_cloth, shine
from fusionray.data.synthetic.region import Region


@dataclass(frozen=True)
class HairPaint:
    """The hair in a window: near layer and far layer, each colour [N, 3, h, w] and coverage [N, h, w], and depth."""

    near_colour: Tensor
    near_alpha: Tensor
    far_colour: Tensor
    far_alpha: Tensor
    t: Tensor


def draw_hair(figure: Figure, region: Region) -> HairPaint:
    """Draw both layers of the shell."""
    hair, light = figure.hair, figure.light
    (x, y, z), inverse, t, reach = _cast_shell(hair, figure.pose, region)
    curls = _curls(hair.curl, x, y, z)
    lump = curls * hair.curl
    lon = (x / (y.square().mul_(inverse[1]).neg_().add_(1.0).clamp_(min=0.05).sqrt_())).sub_(0.3 * hair.part)
    strands = _strands(lon, y, region, hair)
    body = cover((1.0 - reach).mul_(0.85).add_(lump), region.step).mul_(hair.density)
    end = (hair.drop - hair.centre_y - y).add_(strands, alpha=0.05).add_(lump, alpha=0.6)
    body.mul_(cover(end, region.step + 0.05))
    edge = face_opening(hair, (x, y + hair.centre_y, z)).sub_(1.0).add_(strands, alpha=0.025).add_(lump)
    near = cover(edge.mul_(0.45), region.step + 0.012).mul_(body)
    rough = (6.0 * hair.curl).clamp(max=0.4) * curls
    normal = normalise(
        ((x * inverse[0]).add_(strands, alpha=0.22).add_(rough), (y * inverse[1]).sub_(rough), z * inverse[2])
    )
    colour = light_cloth(normal, light, rough + 0.86, hair.colour)
    parting = stroke(x - 0.34 * hair.part + 0.05 * y, 0.014, region.step).mul_(smooth(y, -0.50, -0.62))
    tone = (0.20 * strands).add_(rough, alpha=0.25).add_(0.92).mul_(1.0 - parting.mul_(0.55 * hair.slant.abs()))
    gloss = (0.45 * strands).add_(0.55).mul_(shine(normal, light)) * (1.0 - 9.0 * hair.curl).clamp(min=0.3)
    sheen = (hair.colour.sqrt() * 0.22 + 0.02) * light.direct
    colour.mul_(tone[:, None]).addcmul_(sheen, gloss.clamp_(min=0.0)[:, None])
    shade = (0.10 * strands).add_(0.34).addcmul_(x, 0.10 * light.toward[0] / hair.half_width)
    far = shade[:, None] * (hair.colour * (light.direct + light.ambient))
    return HairPaint(colour, near, far, body, t)


def _cast_shell(hair: HairShape, pose: Pose, region: Region) -> tuple[Vector, Vector, Tensor, Tensor]:
    """Return points on the shell (y from its own centre), its inverse squared axes, depth, and reach of the outline."""
    x, y, z = pose.rays(region.u, region.v)
    origin = (x, y - hair.centre_y, z)
    across, up, deep, low = (1.0 / axis.square() for axis in (hair.half_width, hair.up, hair.half_depth, hair.low))
    # The halves meet smoothly, so the height at a typical depth tells them apart well enough.
    below = (origin[1] + 0.7 * hair.half_depth * pose.toward[1]).mul_(50.0).clamp_(0.0, 1.0)
    inverse = (across, below.mul_(low - up).add_(up), deep)
    hit = cast(origin, pose.toward, inverse)
    return travel(origin, pose.toward, hit.t), inverse, hit.t, hit.reach


def _strands(lon: Tensor, y: Tensor, region: Region, hair: HairShape) -> Tensor:
    """Return the brightness of strands that run from the crown down, in [-1, 1]; fades when finer than pixels."""
    bend = torch.sin(3.1 * y + 4.0 * hair.part).mul_(2.0)
    coarse = torch.sin((23.0 * lon).add_(bend)).mul_(0.45 * (0.12 / region.step).clamp(max=1.0))
    fine = torch.sin((61.0 * lon).add_(bend, alpha=1.7).add_(y, alpha=5.0)).mul_(
        0.33 * (0.04 / region.step).clamp(max=1.0)
    )
    finest = torch.sin((127.0 * lon).add_(y, alpha=9.0).add_(bend)).mul_(0.22 * (0.018 / region.step).clamp(max=1.0))
    return coarse.add_(fine).add_(finest)


def _curls(curl: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Return a lumpy field in about [-1, 1] over the shell: waves whose arguments are bent by other waves."""
    if not bool((curl > 0).any()):
        return torch.zeros_like(x)
    bend = torch.sin(7.0 * x - 11.0 * y).mul_(1.3).add_(torch.sin(13.0 * y + 9.0 * z))
    large = torch.sin((17.0 * x + 5.0 * y).add_(bend)).mul_(torch.sin((15.0 * y - 4.0 * x).sub_(bend)))
    small = torch.sin((37.0 * x + 8.0 * y).sub_(bend, alpha=1.6)).mul_(torch.sin((34.0 * y + 10.0 * z).add_(bend)))
    return large.mul_(0.75).add_(small, alpha=0.6)


@dataclass(frozen=True)
class KnotPaint:
    """A bun or ponytail: colour [N, 3, h, w] and coverage [N, h, w]; it lies behind the head."""

    colour: Tensor
    alpha: Tensor


def draw_knot(figure: Figure, region: Region) -> KnotPaint:
    """Draw the bun or ponytail of the rows that wear one."""
    hair, light, pose = figure.hair, figure.light, figure.pose
    centre, axes = knot_place(hair)
    x, y, z = pose.rays(region.u, region.v)
    inverse = (1.0 / axes[0].square(), 1.0 / axes[1].square(), 1.0 / axes[2].square())
    origin = (x - centre[0], y - centre[1], z - centre[2])
    hit = cast(origin, pose.toward, inverse)
    px, py, pz = travel(origin, pose.toward, hit.t)
    strands = torch.sin((px + 0.4 * py) * (46.0 / (0.5 + axes[1]))).mul_((0.08 / region.step).clamp(max=1.0))
    normal = normalise(((px * inverse[0]).add_(strands, alpha=0.5), py * inverse[1], pz * inverse[2]))
    colour = light_cloth(normal, light, torch.full_like(px, 0.8), hair.colour)
    colour.mul_((0.85 + 0.2 * strands)[:, None])
    colour.addcmul_(0.06 * light.direct, shine(normal, light)[:, None])
    return KnotPaint(colour, cover((1.0 - hit.reach) * axes[0], region.step) * (hair.knot > 0.5).to(px.dtype))
