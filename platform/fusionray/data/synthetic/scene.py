"""One chunk of pictures, drawn from back to front.

Legend: N rows, S output size, H x W a window; planes [N, H, W]; colours [N, 3, H, W], linear until the very end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fusionray.data.synthetic.background import draw_background
from fusionray.data.synthetic.beard import paint_beard
from fusionray.data.synthetic.body import CLOTHES_TOP, build_body_frame, paint_clothes, paint_neck
from fusionray.data.synthetic.brows import paint_brows
from fusionray.data.synthetic.canvas import Canvas
from fusionray.data.synthetic.ears import draw_ear, ear_visibility
from fusionray.data.synthetic.eyes import paint_eyes
from fusionray.data.synthetic.face import shade_skin
from fusionray.data.synthetic.figure import Figure
from fusionray.data.synthetic.geometry import compose, cover, is_above, length, smooth
from fusionray.data.synthetic.glasses import paint_glasses
from fusionray.data.synthetic.grain import add_grain
from fusionray.data.synthetic.hair import HairPaint, draw_hair, draw_knot
from fusionray.data.synthetic.hairstyles import face_opening
from fusionray.data.synthetic.head import cast_head
from fusionray.data.synthetic.mouth import paint_mouth
from fusionray.data.synthetic.nose import paint_nose
from fusionray.data.synthetic.region import Region, whole_region
from fusionray.data.synthetic.relief import build_relief

# A picture's planes: linear RGB, then these.
_MASK, _DEPTH = 3, 4
# Depth where nothing of the head is: further than anything.
_FAR = -9.0


class Scene:
    """The figures of one chunk of rows, and the picture that grows from them."""

    def __init__(self, figure: Figure, size: int, view: Tensor | None) -> None:
        self.figure = figure
        pose = figure.pose
        output_to_picture = _whole_picture(pose.picture_to_screen) if view is None else view
        self._backdrop = whole_region(output_to_picture, 0.3 * pose.softness, size, {})
        output_to_screen = compose(pose.picture_to_screen, output_to_picture)
        self._whole = whole_region(output_to_screen, pose.softness, size, figure.ellipses)
        self._layers = pose.softness.new_empty((pose.softness.shape[0], 5, size, size))
        self._layers[:, _MASK] = 0.0
        self._layers[:, _DEPTH] = _FAR
        self._colour = self._layers[:, :_MASK]

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return display RGB [N, 3, S, S] in [0, 1] and the mask [N, S, S]."""
        figure = self.figure
        self._colour.copy_(draw_background(figure.how, self._backdrop.u, self._backdrop.v, self._backdrop.step))
        hair_region = self._whole.window("hair")
        hair = draw_hair(figure, hair_region) if bool((figure.hair.density > 0).any()) else None
        if hair is not None:
            self._paint_far_hair(hair_region, hair)
        self._paint_body()
        self._paint_head()
        self._paint_ear(-1.0)
        self._paint_ear(1.0)
        if hair is not None:
            self._paint_near_hair(hair_region, hair)
        if bool((figure.how["glasses"] > 0.5).any()):
            self._paint_glasses()
        # A soft shoulder keeps highlights from clipping; the square root turns linear light into display values.
        display = self._colour.div_((0.10 * self._colour).add_(1.0)).mul_(1.08).clamp_(0.0, 1.0).sqrt_()
        return add_grain(display, figure.how, self._backdrop), self._layers[:, _MASK].clamp_(0.0, 1.0)

    def _paint_far_hair(self, region: Region, hair: HairPaint) -> None:
        region.write(self._colour, region.read(self._colour).lerp_(hair.far_colour, hair.far_alpha[:, None]))
        if not bool((self.figure.hair.knot > 0).any()):
            return
        region = self._whole.window("knot")
        knot = draw_knot(self.figure, region)
        region.write(self._colour, region.read(self._colour).lerp_(knot.colour, knot.alpha[:, None]))

    def _paint_body(self) -> None:
        figure, head = self.figure, self.figure.head
        region = self._whole.window("neck")
        # The chin keeps light from what lies below it: nearer than about 0.4 head units under the head's outline.
        u, v = region.u / (head.half_width * 1.05), (region.v - 0.10).div_(head.chin)
        shadow = smooth(length(u, v), 1.34, 0.92)
        neck = region.read(self._colour)
        paint_neck(neck, figure, build_body_frame(figure, region), shadow)
        region.write(self._colour, neck)
        region = self._whole.below(figure.body_angle.sin(), figure.body_angle.cos(), CLOTHES_TOP)
        paint_clothes(region.read(self._colour), figure, build_body_frame(figure, region))

    def _paint_head(self) -> None:
        figure = self.figure
        region = self._whole.window("head")
        hit = cast_head(figure.head, figure.pose, region)
        outline = cover(hit.inside, region.step)
        relief = build_relief(figure, hit.point)
        # Hair throws a soft shadow on the skin along its edge.
        relief.close(smooth(face_opening(figure.hair, hit.point), 0.72, 1.0).mul_(0.45 * figure.hair.density))
        canvas = shade_skin(figure, hit, relief, region)
        depth = (hit.t - _FAR).mul_(is_above(outline, 0.5)).add_(_FAR)
        self._paint_features(canvas, outline)
        part = region.read(self._layers)
        part[:, :_MASK].lerp_(canvas.colour, outline[:, None])
        part[:, _MASK] = outline
        part[:, _DEPTH] = depth
        region.write(self._layers, part)

    def _paint_features(self, canvas: Canvas, outline: Tensor) -> None:
        who = self.figure.who
        if bool((who["moustache"] + who["beard"] > 0).any()):
            self._paint_part(canvas, "jaw", paint_beard)
        self._paint_part(canvas, "eyes", paint_eyes)
        self._paint_part(canvas, "brows", paint_brows)
        self._paint_part(canvas, "mouth", paint_mouth)
        middle = canvas.part(canvas.region.window("nose"), whole=True)
        paint_nose(middle, self.figure, outline)
        canvas.put(middle)

    def _paint_part(self, canvas: Canvas, name: str, paint: Callable[[Canvas, Figure], None]) -> None:
        part = canvas.part(canvas.region.window(name))
        paint(part, self.figure)
        canvas.put(part)

    def _paint_ear(self, side: float) -> None:
        window = self._whole.window("left_ear" if side < 0 else "right_ear")
        part = window.read(self._layers)
        ear = draw_ear(self.figure, window, side)
        alpha = ear_visibility(ear, part[:, _DEPTH], part[:, _MASK])
        part[:, :_MASK].lerp_(ear.colour, alpha[:, None])
        part[:, _MASK] = torch.maximum(part[:, _MASK], alpha)
        part[:, _DEPTH].lerp_(torch.maximum(part[:, _DEPTH], ear.t), is_above(alpha, 0.5))
        window.write(self._layers, part)

    def _paint_near_hair(self, region: Region, hair: HairPaint) -> None:
        part = region.read(self._layers)
        alpha = smooth(hair.t - part[:, _DEPTH], -0.06, 0.0).mul_(hair.near_alpha)
        part[:, :_MASK].lerp_(hair.near_colour, alpha[:, None])
        part[:, _MASK].mul_(1.0 - alpha)
        region.write(self._layers, part)

    def _paint_glasses(self) -> None:
        figure = self.figure
        region = self._whole.window("glasses")
        part = region.read(self._layers)
        alpha = paint_glasses(part[:, :_MASK], figure, region, part[:, _DEPTH])
        part[:, _MASK].mul_(1.0 - alpha)
        region.write(self._layers, part)


def _whole_picture(like: Tensor) -> Tensor:
    eye = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=like.dtype, device=like.device)
    return eye.expand(like.shape[0], 2, 3)
