"""One chunk of pictures, drawn from back to front.

Legend: N rows, S output size, H x W a window; planes [N, H, W]; colours [N, 3, H, W], linear until the very end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.background import draw_background
from fusionray.data.synthetic.beard import paint_beard
from fusionray.data.synthetic.body import NECK_TOP, body_angle, build_body_frame, paint_body
from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.ears import draw_ear, ear_centre, ear_visibility
from fusionray.data.synthetic.eyes import paint_brows, paint_eyes
from fusionray.data.synthetic.face import build_relief, shade_skin
from fusionray.data.synthetic.geometry import Region, build_pose, cover, normalise, smooth, whole_region
from fusionray.data.synthetic.glasses import paint_glasses
from fusionray.data.synthetic.grain import add_grain
from fusionray.data.synthetic.hair import HairPaint, build_hair, draw_hair, draw_knot, face_opening, knot_place
from fusionray.data.synthetic.head import HeadHit, build_head, cast_head
from fusionray.data.synthetic.light import build_light
from fusionray.data.synthetic.mouth import build_mouth, paint_mouth
from fusionray.data.synthetic.nose import build_nose, paint_nose
from fusionray.data.synthetic.palette import skin_colour
from fusionray.data.synthetic.parameters import ATTRIBUTE_NAMES, IDENTITY_NAMES, Columns

# Depth of what has nothing in front: further than anything.
_FAR = -9.0


class Scene:
    """The shapes of one chunk of rows, and the picture that grows from them."""

    def __init__(self, identity: Tensor, attributes: Tensor, size: int, view: Tensor | None) -> None:
        self.who, self.how = Columns(identity, IDENTITY_NAMES), Columns(attributes, ATTRIBUTE_NAMES)
        self.pose = build_pose(self.how)
        self.light = build_light(self.how, self.pose)
        self.shape = build_head(self.who, self.how)
        self.hair = build_hair(self.how, self.shape)
        self.mouth = build_mouth(self.who, self.how, self.shape)
        self.nose = build_nose(self.who, self.shape)
        self.skin = skin_colour(self.who["skin_tone"], self.who["skin_warmth"])
        self.whole = whole_region(self.pose, view, size)
        self.backdrop = _picture_region(self.pose.softness, identity, view, size)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return display RGB [N, 3, S, S] in [0, 1] and the mask [N, S, S]."""
        colour = draw_background(self.how, self.backdrop.u, self.backdrop.v, self.backdrop.step)
        hair_region = self._hair_region()
        hair = draw_hair(self.hair, self.pose, self.light, hair_region)
        colour = self._paint_far_hair(colour, hair_region, hair)
        colour = self._paint_body(colour)
        colour, mask, depth = self._paint_head(colour)
        colour, mask = self._paint_near_hair(colour, mask, depth, hair_region, hair)
        colour, mask = self._paint_glasses(colour, mask, depth)
        display = (colour / (1.0 + 0.10 * colour) * 1.08).clamp(0.0, 1.0).sqrt()
        return add_grain(display, self.how, self.backdrop), mask.clamp(0.0, 1.0)

    def _hair_region(self) -> Region:
        hair = self.hair
        up, low = hair.up + 0.2, torch.minimum(hair.low, hair.drop + 0.1) + 0.25
        half_u = torch.maximum(hair.half_width, hair.half_depth) + 0.12
        return self.whole.window(torch.zeros_like(up), 0.5 * (low - up), half_u, 0.5 * (low + up))

    def _paint_far_hair(self, colour: Tensor, region: Region, hair: HairPaint) -> Tensor:
        painted = torch.lerp(region.read(colour), hair.far_colour, hair.far_alpha[:, None])
        colour = region.write(colour, painted)
        if not bool((self.hair.knot > 0).any()):
            return colour
        centre, axes = knot_place(self.hair)
        middle = self.pose.to_screen(centre)
        half = axes[1] + 0.02
        knot_region = self.whole.window(middle[0], middle[1], half, half)
        knot = draw_knot(self.hair, self.pose, self.light, knot_region)
        return knot_region.write(colour, torch.lerp(knot_region.read(colour), knot.colour, knot.alpha[:, None]))

    def _paint_body(self, colour: Tensor) -> Tensor:
        angle = body_angle(self.how)
        region = self.whole.beyond(angle.sin(), angle.cos(), torch.full_like(angle, NECK_TOP))
        body = build_body_frame(self.how, self.light, region)
        # The chin keeps light from what lies below it: nearer than about 0.4 head units under the head's outline.
        u, v = region.u, region.v - 0.10
        away = (u * u / (self.shape.half_width * 1.05) ** 2 + v * v / self.shape.chin**2).sqrt()
        shadow = 1.0 - smooth(away, 0.92, 1.34)
        painted = paint_body(region.read(colour), self.who, self.how, self.shape, self.skin, self.pose, self.light,
                             body, shadow)
        return region.write(colour, painted)

    def _paint_head(self, colour: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        half_u = torch.maximum(1.12 * shape.half_width, shape.half_depth) + 0.06
        low, up = shape.chin + 0.06, shape.crown + 0.06
        region = self.whole.window(torch.zeros_like(low), 0.5 * (low - up), half_u, 0.5 * (low + up))
        hit = cast_head(shape, self.pose, region)
        alpha = cover(hit.inside, region.step)
        relief = build_relief(self.who, self.how, shape, hit)
        # Hair throws a soft shadow on the skin along its edge.
        hidden = smooth(face_opening(self.hair, hit.point), 0.72, 1.0) * self.hair.density
        relief.openness = relief.openness * (1.0 - 0.45 * hidden)
        canvas = shade_skin(self.who, self.how, self.skin, shape, hit, relief, self.pose, self.light, region)
        self._paint_features(canvas, hit)
        painted = torch.lerp(region.read(colour), canvas.colour, torch.maximum(alpha, canvas.beyond)[:, None])
        mask = torch.maximum(alpha, canvas.beyond)
        depth = torch.where(alpha > 0.5, hit.t, torch.full_like(hit.t, _FAR))
        whole = torch.zeros_like(colour[:, 0])
        planes = (region.write(colour, painted), region.write(whole, mask), region.write(whole + _FAR, depth))
        return self._paint_ears(*planes)

    def _paint_features(self, canvas: Canvas, hit: HeadHit) -> None:
        shape, mouth = self.shape, self.mouth
        if bool((self.who["moustache"] + self.who["beard"]).max() > 0):
            jaw = self._face_window(canvas.region, 0.5 * (shape.eye_y + shape.chin), 0.95, 0.62)
            cheeks = canvas.part(jaw)
            paint_beard(cheeks, self.who, shape, mouth)
            canvas.put(cheeks)
        band = self._face_window(canvas.region, shape.eye_y - 0.14, 0.66, 0.40)
        eyes = canvas.part(band)
        paint_eyes(eyes, self.who, self.how, shape, self.skin, self.light)
        paint_brows(eyes, self.who, self.how, shape)
        canvas.put(eyes)
        low = self._face_window(canvas.region, mouth.y + 0.10, 0.45, 0.36)
        lips = canvas.part(low)
        paint_mouth(lips, self.who, mouth, self.skin, self.light)
        canvas.put(lips)
        middle = self._face_window(canvas.region, 0.5 * (shape.eye_y + shape.nose_y), 0.30, 0.52)
        paint_nose(canvas, middle, self.nose, shape, hit, self.pose, self.light)

    def _face_window(self, region: Region, y: Tensor, half_width: float, half_height: float) -> Region:
        """Return the window of a part of the face whose middle lies at (0, y) on the surface."""
        zero = torch.zeros_like(y)
        u, v, _ = self.pose.to_screen((zero, y, self.shape.depth_at(zero, y)))
        return region.window(u, v, zero + half_width, zero + half_height)

    def _paint_ears(self, colour: Tensor, mask: Tensor, depth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for side in (-1.0, 1.0):
            u, v, _ = self.pose.to_screen(ear_centre(self.who, self.shape, side))
            window = self.whole.window(u, v, torch.full_like(u, 0.20), torch.full_like(u, 0.33))
            before, covered = window.read(depth), window.read(mask)
            ear = draw_ear(self.who, self.shape, self.pose, window, self.light, self.skin, side)
            alpha = ear_visibility(ear, before, covered)
            colour = window.write(colour, torch.lerp(window.read(colour), ear.colour, alpha[:, None]))
            mask = window.write(mask, torch.maximum(covered, alpha))
            depth = window.write(depth, torch.where(alpha > 0.5, torch.maximum(before, ear.t), before))
        return colour, mask, depth

    def _paint_near_hair(self, colour: Tensor, mask: Tensor, depth: Tensor, region: Region,
                         hair: HairPaint) -> tuple[Tensor, Tensor]:
        alpha = hair.near_alpha * smooth(hair.t - region.read(depth), -0.06, 0.0)
        painted = torch.lerp(region.read(colour), hair.near_colour, alpha[:, None])
        return region.write(colour, painted), region.write(mask, region.read(mask) * (1.0 - alpha))

    def _paint_glasses(self, colour: Tensor, mask: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        if not bool((self.how["glasses"] > 0.5).any()):
            return colour, mask
        zero = torch.zeros_like(self.shape.crown)
        u, v, _ = self.pose.to_screen((zero, self.shape.eye_y, zero + 0.55))
        region = self.whole.window(u, v, zero + 0.95, zero + 0.45)
        painted, alpha = paint_glasses(region.read(colour), self.how, self.shape, self.pose, self.light, region,
                                       region.read(depth))
        return region.write(colour, painted), region.write(mask, region.read(mask) * (1.0 - alpha))


def _picture_region(softness: Tensor, like: Tensor, view: Tensor | None, size: int) -> Region:
    """Return the output's region in picture coordinates: backgrounds and grain live there, not in the head's frame."""
    if view is None:
        eye = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=like.dtype, device=like.device)
        view = eye.expand(like.shape[0], 2, 3)
    corner = torch.zeros_like(softness, dtype=torch.int64)
    return Region(view, 0.3 * softness, size, corner, corner, size, size)
