"""The face's relief and skin: sockets, cheeks, chin, folds and wrinkles as slopes of the surface, then its colour.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1]; colours [N, 3, ...], linear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.geometry import Pose, Region, Vector, bump, normalise, smooth
from fusionray.data.synthetic.head import HeadHit, HeadShape
from fusionray.data.synthetic.light import Light, illuminate, shine, skin_wrap
from fusionray.data.synthetic.palette import constant
from fusionray.data.synthetic.parameters import Columns


@dataclass
class Relief:
    """Slopes of a height map over (|x|, y), and how much of the open sky each point still sees (1 = all)."""

    x: Tensor
    y: Tensor
    slope_x: Tensor
    slope_y: Tensor
    openness: Tensor

    def raise_hill(self, height: Tensor | float, centre: tuple[Tensor | float, Tensor | float],
                   spread: tuple[Tensor | float, Tensor | float], shade: Tensor | float = 0.0) -> Tensor:
        """Add a hill (or hollow), optionally shading it; return its profile, 1 at the centre."""
        dx, dy = (self.x - centre[0]) / spread[0], (self.y - centre[1]) / spread[1]
        hill = (1.0 - dx * dx - dy * dy).clamp(min=0.0)
        steep = -4.0 * height * hill
        self.slope_x = self.slope_x + steep / spread[0] * dx
        self.slope_y = self.slope_y + steep / spread[1] * dy
        profile = hill * hill
        if not isinstance(shade, float) or shade:
            self.openness = self.openness * (1.0 - shade * profile)
        return profile

    def cut_groove(self, depth: Tensor, distance: Tensor, half_width: float, fade: Tensor) -> None:
        """Cut a groove along distance = 0 across |x|, fading by a plane in [0, 1]."""
        side = distance / half_width
        profile = (1.0 - side * side).clamp(min=0.0)
        self.slope_x = self.slope_x + 4.0 * depth / half_width * side * profile * fade
        self.openness = self.openness * (1.0 - (6.0 * depth).clamp(max=0.5) * profile * profile * fade)


def build_relief(identity: Columns, attributes: Columns, shape: HeadShape, hit: HeadHit) -> Relief:
    """Build the relief of the whole face but the nose."""
    x, y = hit.point[0].abs(), hit.point[1]
    relief = Relief(x, y, torch.zeros_like(x), torch.zeros_like(x), torch.ones_like(x))
    smile, age = attributes["smile"], identity["age"]
    full, lift = identity["cheek_fullness"], smile.clamp(min=0.0)
    relief.raise_hill(-0.060, (shape.eye_x * 0.93, shape.eye_y - 0.05), (0.30, 0.23), 0.30)
    relief.raise_hill(0.026 + 0.012 * attributes["brow_furrow"], (0.22, shape.eye_y - 0.27), (0.36, 0.15))
    relief.raise_hill(0.050 + 0.02 * identity["cheek_width"] + 0.05 * lift, (0.45, 0.29 - 0.05 * lift), (0.32, 0.26))
    relief.raise_hill(0.030 * full - 0.016, (0.50, 0.58), (0.27, 0.30), (0.14 - 0.16 * full).clamp(min=0.0))
    relief.raise_hill(-0.030, (0.70, -0.28), (0.26, 0.34))
    relief.raise_hill(0.050, (0.0, shape.mouth_y - 0.01), (0.42, 0.30))
    relief.raise_hill(0.055, (0.0, 0.88 * shape.chin), (0.26, 0.19))
    relief.raise_hill(-0.040, (0.0, shape.mouth_y + 0.17 + 0.14 * attributes["mouth_open"]), (0.25, 0.09), 0.22)
    relief.raise_hill(-0.010, (0.0, 0.5 * (shape.nose_y + shape.mouth_y) + 0.02), (0.07, 0.14), 0.10)
    relief.raise_hill(0.012 + 0.02 * age, (shape.eye_x, shape.eye_y + 0.17), (0.20, 0.075))
    relief.raise_hill(-0.012 * age, (shape.eye_x, shape.eye_y + 0.235), (0.22, 0.05), 0.35 * age)
    _fold_cheeks(relief, shape, identity, smile, age)
    _wrinkle_brow(relief, shape, attributes, age)
    return relief


def _fold_cheeks(relief: Relief, shape: HeadShape, identity: Columns, smile: Tensor, age: Tensor) -> None:
    top, bottom = shape.nose_y - 0.08, shape.mouth_y + 0.10
    along = (relief.y - top) / (bottom - top)
    start = 0.17 + 0.02 * identity["nose_width"]
    end = 0.36 + 0.035 * identity["mouth_width"] + 0.05 * smile
    curve = start + (end - start) * along + 0.05 * along * (1.0 - along)
    fade = bump(along, relief.y * 0.0, (0.45, 0.0), (0.62, 1.0))
    relief.cut_groove(0.006 + 0.055 * age + 0.040 * smile.clamp(min=0.0), relief.x - curve, 0.075, fade)


def _wrinkle_brow(relief: Relief, shape: HeadShape, attributes: Columns, age: Tensor) -> None:
    raised, furrow = attributes["brow_raise"].clamp(min=0.0), attributes["brow_furrow"]
    middle = shape.eye_y - 0.52
    spread = bump(relief.x, relief.y, (0.0, middle), (0.52, 0.22))
    wave = torch.sin(62.0 * (relief.y - middle) + 5.0 * relief.x * relief.x)
    strength = (0.55 * (age - 0.25).clamp(min=0.0) + 0.35 * raised * (0.4 + age)) * spread
    relief.slope_y = relief.slope_y + strength * wave
    relief.openness = relief.openness * (1.0 - 0.32 * strength * (wave * 0.5 + 0.5))
    between = bump(relief.x, relief.y, (0.0, shape.eye_y - 0.25), (0.30, 0.17))
    relief.cut_groove(0.05 * furrow + 0.012 * age, relief.x - 0.065, 0.04, between)


def shade_skin(identity: Columns, attributes: Columns, skin: Tensor, shape: HeadShape, hit: HeadHit, relief: Relief,
               pose: Pose, light: Light, region: Region) -> Canvas:
    """Light the bare face: colour with flush, freckles and mole, soft shadow under nose and hair, highlights."""
    unit = normalise(hit.normal)
    side = hit.point[0].sign()
    front = unit[2].clamp(min=0.0)
    normal = normalise((unit[0] - side * relief.slope_x * front, unit[1] - relief.slope_y * front, unit[2]))
    relief.openness = relief.openness * (1.0 - _nose_shadow(shape, hit.point, light))
    received = illuminate(normal, light.head, light.head_up, light, relief.openness, skin_wrap(skin))
    albedo = _colour_skin(identity, attributes, skin, shape, hit.point, region)
    gloss = 0.10 * shine(normal, light.head_half, 3) + 0.16 * shine(normal, light.head_half, 5)
    colour = albedo * received + light.direct_N3 * (gloss * relief.openness)[:, None] * 0.55
    return Canvas(region, colour, received, albedo, hit.point[0], hit.point[1], front, normal, torch.zeros_like(front))


def _nose_shadow(shape: HeadShape, point: Vector, light: Light) -> Tensor:
    """Return the share of light that the nose keeps from the face: it falls away from the light."""
    forward = light.head[2].clamp(min=0.35)
    x = -0.15 * (light.head[0] / forward).clamp(-1.6, 1.6)
    y = shape.nose_y + 0.05 - 0.13 * (light.head[1] / forward).clamp(-1.2, 0.5)
    return 0.42 * bump(point[0], point[1], (x, y), (0.24 + 0.3 * x.abs(), 0.16))


def _colour_skin(identity: Columns, attributes: Columns, skin: Tensor, shape: HeadShape, point: Vector,
                 region: Region) -> Tensor:
    x, y = point[0].abs(), point[1]
    flush = bump(x, y, (0.42, 0.30), (0.36, 0.30)) + 0.8 * bump(x, y, (0.0, shape.nose_y - 0.06), (0.26, 0.26))
    flush = flush * (0.10 + 0.55 * identity["skin_flush"])
    albedo = torch.lerp(skin, skin * constant(skin, 1.0, 0.76, 0.75), flush[:, None])
    lids = bump(x, y, (shape.eye_x, shape.eye_y + 0.03), (0.30, 0.17)) * (0.16 + 0.22 * identity["age"])
    albedo = albedo * (1.0 - lids)[:, None]
    brown = skin * constant(skin, 0.72, 0.60, 0.52)
    return torch.lerp(albedo, brown, _marks(identity, shape, point, region)[:, None])


def _marks(identity: Columns, shape: HeadShape, point: Vector, region: Region) -> Tensor:
    """Return where freckles and the mole lie. Freckles are peaks of crossed waves whose places differ by person."""
    x, y = point[0], point[1]
    phase = 7.0 * identity["mole_x"] + 3.0 * identity["mole_y"]
    wave = torch.sin(53.0 * x + 17.0 * y + phase) + torch.sin(47.0 * y - 19.0 * x + 2.3 * phase)
    wave = wave + torch.sin(31.0 * (x + y) + 1.7 * phase)
    zone = bump(x.abs(), y, (0.26, 0.26), (0.50, 0.34))
    amount = identity["freckles"]
    fine = (0.05 / region.step).clamp(max=1.0)
    freckles = smooth(wave, 1.05, 1.75) * zone * (0.95 * amount.sqrt()) * fine
    size = 0.028 + 0.022 * identity["mole_size"]
    away = ((x - 0.46 * identity["mole_x"]) ** 2 + (y - 0.40 - 0.38 * identity["mole_y"]) ** 2).sqrt()
    mole = ((size - away) / region.step.clamp(min=0.012) + 0.5).clamp(0.0, 1.0)
    mole = mole * (identity["mole_size"] > 0).to(mole.dtype)
    return torch.maximum(freckles, 1.6 * mole).clamp(max=1.6)
