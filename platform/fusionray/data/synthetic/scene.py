"""Compose one chunk of pictures from back to front.

Legend: N rows, S output size, H x W a window; planes [N, H, W]; colours [N, 3, H, W], linear until the very end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.canvas import Canvas
from fusionray.data.synthetic.graphics.device import constant_like, is_needed
from fusionray.data.synthetic.graphics.geometry import compose, edge_coverage, is_above, length, smoothstep
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow, whole_output
from fusionray.data.synthetic.layers.background import draw_background
from fusionray.data.synthetic.layers.beard import paint_beard
from fusionray.data.synthetic.layers.body import CLOTHES_TOP, build_body_frame, paint_clothes, paint_neck
from fusionray.data.synthetic.layers.brows import paint_brows
from fusionray.data.synthetic.layers.ears import draw_ear, ear_visibility
from fusionray.data.synthetic.layers.eyes import paint_eyes
from fusionray.data.synthetic.layers.glasses import paint_glasses
from fusionray.data.synthetic.layers.grain import add_grain
from fusionray.data.synthetic.layers.hair import HairLayers, draw_hair, draw_knot
from fusionray.data.synthetic.layers.mouth import paint_mouth
from fusionray.data.synthetic.layers.nose import paint_nose
from fusionray.data.synthetic.layers.relief import build_relief
from fusionray.data.synthetic.layers.skin import shade_skin
from fusionray.data.synthetic.shapes.hairstyles import face_opening
from fusionray.data.synthetic.shapes.head import intersect_head
from fusionray.data.synthetic.shapes.person import PersonModel

# Planes of a picture: linear RGB, then these.
_REGION, _DEPTH = 3, 4
# What a pixel can show; the face has its features and its beard.
PARTS = ("background", "hair", "neck", "clothes", "face", "ears", "glasses")
# Depth of pixels without a head: behind everything.
_FAR = -9.0


class Scene:
    """A chunk of people and their pictures; `draw` paints one layer after another into the same planes.

    `parts` [N, P, S, S]: how much of each pixel each of PARTS covers, once it is drawn; None unless `with_parts`.
    """

    def __init__(self, person: PersonModel, size: int, view: Tensor | None, *, with_parts: bool = False) -> None:
        self.person = person
        pose = person.pose
        output_to_picture = _whole_picture(pose.picture_to_screen) if view is None else view
        self._backdrop = whole_output(output_to_picture, 0.3 * pose.softness, size, {})
        output_to_screen = compose(pose.picture_to_screen, output_to_picture)
        self._whole = whole_output(output_to_screen, pose.softness, size, person.ellipses)
        self._layers = pose.softness.new_empty((pose.softness.shape[0], 5, size, size))
        self._layers[:, _REGION] = 0.0
        self._layers[:, _DEPTH] = _FAR
        self._colour = self._layers[:, :_REGION]
        self.parts: Tensor | None = None
        if with_parts:
            self.parts = torch.zeros_like(self._layers[:, :1]).repeat(1, len(PARTS), 1, 1)
            self.parts[:, 0] = 1.0

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return display RGB [N, 3, S, S] in [0, 1] and the region [N, S, S] in [0, 1] that shows the face."""
        person = self.person
        self._colour.copy_(
            draw_background(person.attributes, self._backdrop.u, self._backdrop.v, self._backdrop.edge_width)
        )
        hair_window = self._whole.part("hair")
        hair = draw_hair(person, hair_window) if is_needed(person.hair.density > 0) else None
        if hair is not None:
            self._paint_far_hair(hair_window, hair)
        self._paint_body()
        self._paint_head()
        self._paint_ear(-1.0)
        self._paint_ear(1.0)
        if hair is not None:
            self._paint_near_hair(hair_window, hair)
        if is_needed(person.attributes["glasses"] > 0.5):
            self._paint_glasses()
        # A soft shoulder keeps highlights from clipping; the square root turns linear light into display values.
        display = self._colour.div_((0.10 * self._colour).add_(1.0)).mul_(1.08).clamp_(0.0, 1.0).sqrt_()
        return add_grain(display, person.attributes, self._backdrop), self._layers[:, _REGION].clamp_(0.0, 1.0)

    def _cover(self, window: PixelWindow, part: str, alpha: Tensor) -> None:
        """Note that a part covers a window by `alpha` [N, H, W]."""
        if self.parts is None:
            return
        planes = window.read(self.parts)
        planes.mul_((1.0 - alpha)[:, None])
        planes[:, PARTS.index(part)].add_(alpha)
        window.write(self.parts, planes)

    def _paint_far_hair(self, window: PixelWindow, hair: HairLayers) -> None:
        window.write(self._colour, window.read(self._colour).lerp_(hair.far_colour, hair.far_alpha[:, None]))
        self._cover(window, "hair", hair.far_alpha)
        if not is_needed(self.person.hair.knot > 0):
            return
        window = self._whole.part("knot")
        knot = draw_knot(self.person, window)
        window.write(self._colour, window.read(self._colour).lerp_(knot.colour, knot.alpha[:, None]))
        self._cover(window, "hair", knot.alpha)

    def _paint_body(self) -> None:
        person, head = self.person, self.person.head
        window = self._whole.part("neck")
        # The chin shades the neck up to about 0.4 head units below the outline of the head.
        u, v = window.u / (head.half_width * 1.05), (window.v - 0.10).div_(head.chin)
        shadow = smoothstep(length(u, v), 1.34, 0.92)
        neck = window.read(self._colour)
        alpha = paint_neck(neck, person, build_body_frame(person, window), shadow)
        window.write(self._colour, neck)
        self._cover(window, "neck", alpha)
        window = self._whole.below(person.body_angle.sin(), person.body_angle.cos(), CLOTHES_TOP)
        alpha = paint_clothes(window.read(self._colour), person, build_body_frame(person, window))
        self._cover(window, "clothes", alpha)

    def _paint_head(self) -> None:
        person = self.person
        window = self._whole.part("head")
        hit = intersect_head(person.head, person.pose, window)
        outline = edge_coverage(hit.inside, window.edge_width)
        relief = build_relief(person, hit.point)
        # Hair throws a soft shadow on the skin along its edge.
        relief.occlude(smoothstep(face_opening(person.hair, hit.point), 0.72, 1.0).mul_(0.45 * person.hair.density))
        canvas = shade_skin(person, hit, relief, window)
        depth = (hit.t - _FAR).mul_(is_above(outline, 0.5)).add_(_FAR)
        self._paint_features(canvas, outline)
        part = window.read(self._layers)
        part[:, :_REGION].lerp_(canvas.colour, outline[:, None])
        part[:, _REGION] = outline
        part[:, _DEPTH] = depth
        window.write(self._layers, part)
        self._cover(window, "face", outline)

    def _paint_features(self, canvas: Canvas, outline: Tensor) -> None:
        identity = self.person.identity
        if is_needed(identity["moustache"] + identity["beard"] > 0):
            self._paint_part(canvas, "jaw", paint_beard)
        self._paint_part(canvas, "eyes", paint_eyes)
        self._paint_part(canvas, "brows", paint_brows)
        self._paint_part(canvas, "mouth", paint_mouth)
        middle = canvas.part(canvas.window.part("nose"), whole=True)
        paint_nose(middle, self.person, outline)
        canvas.write_back(middle)

    def _paint_part(self, canvas: Canvas, name: str, paint: Callable[[Canvas, PersonModel], None]) -> None:
        part = canvas.part(canvas.window.part(name))
        paint(part, self.person)
        canvas.write_back(part)

    def _paint_ear(self, side: float) -> None:
        window = self._whole.part("left_ear" if side < 0 else "right_ear")
        part = window.read(self._layers)
        ear = draw_ear(self.person, window, side)
        alpha = ear_visibility(ear, part[:, _DEPTH], part[:, _REGION])
        part[:, :_REGION].lerp_(ear.colour, alpha[:, None])
        part[:, _REGION] = torch.maximum(part[:, _REGION], alpha)
        part[:, _DEPTH].lerp_(torch.maximum(part[:, _DEPTH], ear.t), is_above(alpha, 0.5))
        window.write(self._layers, part)
        self._cover(window, "ears", alpha)

    def _paint_near_hair(self, window: PixelWindow, hair: HairLayers) -> None:
        part = window.read(self._layers)
        alpha = smoothstep(hair.t - part[:, _DEPTH], -0.06, 0.0).mul_(hair.near_alpha)
        part[:, :_REGION].lerp_(hair.near_colour, alpha[:, None])
        part[:, _REGION].mul_(1.0 - alpha)
        window.write(self._layers, part)
        self._cover(window, "hair", alpha)

    def _paint_glasses(self) -> None:
        person = self.person
        window = self._whole.part("glasses")
        part = window.read(self._layers)
        alpha = paint_glasses(part[:, :_REGION], person, window, part[:, _DEPTH])
        part[:, _REGION].mul_(1.0 - alpha)
        window.write(self._layers, part)
        self._cover(window, "glasses", alpha)


def _whole_picture(like: Tensor) -> Tensor:
    eye = constant_like(((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)), like)
    return eye.expand(like.shape[0], 2, 3)
