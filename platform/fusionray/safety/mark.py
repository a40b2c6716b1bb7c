"""An optional visible mark: a small plate with the letters AI in a corner."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from pydantic import Field

from fusionray.config import Section

Corner = Literal["top-left", "top-right", "bottom-left", "bottom-right"]
Point = tuple[float, float]

# Below this height the letters are illegible.
SMALLEST_HEIGHT = 13
MARGIN = 0.35
# The plate is drawn once at this height, in pixels, and scaled down for each picture, which makes its edges smooth.
DRAWN_HEIGHT = 192
# The plate and its letters, in units of its height. A dark plate with a light rim is visible on any background.
ASPECT = 1.5
RADIUS = 0.28
RIM = 0.07
PLATE_RGBA = (16, 18, 24, 205)
LIGHT_RGBA = (255, 255, 255, 255)
STROKE = 0.135
TOP, BOTTOM = 0.25, 0.75
FEET_OF_A: tuple[float, float] = (0.34, 0.86)
CROSSBAR = 0.61
STEM_OF_I = 1.08


class MarkConfig(Section):
    """A visible mark on every output."""

    enabled: bool = Field(default=False, description="Draw a plate that says AI.")
    corner: Corner = Field(default="bottom-right", description="Corner of the picture.")
    share: float = Field(
        default=0.07, ge=0.03, le=0.3, description="Height of the plate as a share of the picture's short side."
    )


class Mark:
    """The plate, drawn once; thread-safe."""

    def __init__(self, settings: MarkConfig) -> None:
        self.settings = settings
        self.plate = draw_plate()

    def draw(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a copy of a uint8 RGB [H, W, 3] picture with the mark; return a picture that is too small as it is."""
        return self.draw_rows(image, 0, image.shape[0])

    def draw_rows(self, rows: NDArray[np.uint8], start: int, height: int) -> NDArray[np.uint8]:
        """Do what `draw` does for rows [H, W, 3] that begin at row `start` of a picture of `height` rows."""
        placed = self.place(height, rows.shape[1])
        if placed is None:
            return rows
        left, top, plate = placed
        first, last = max(top, start), min(top + len(plate), start + len(rows))
        if first >= last:
            return rows
        part = plate[first - top : last - top]
        colour, alpha = part[..., :3], part[..., 3:] / 255
        marked = rows.copy()
        ground = marked[first - start : last - start, left : left + plate.shape[1]]
        ground[:] = np.rint(ground * (1 - alpha) + colour * alpha).astype(np.uint8)
        return marked

    def place(self, height: int, width: int) -> tuple[int, int, NDArray[np.float32]] | None:
        """Return left, top, and the plate, RGBA of 0..255 [h, w, 4], for a picture; None if it is too small."""
        tall = max(SMALLEST_HEIGHT, round(min(height, width) * self.settings.share))
        wide = round(tall * ASPECT)
        margin = max(2, round(tall * MARGIN))
        if tall + margin > height or wide + margin > width:
            return None
        top = margin if self.settings.corner.startswith("top") else height - tall - margin
        left = margin if self.settings.corner.endswith("left") else width - wide - margin
        plate = np.asarray(self.plate.resize((wide, tall), Image.Resampling.LANCZOS, reducing_gap=3.0), np.float32)
        return left, top, plate


def draw_plate() -> Image.Image:
    """Draw the plate, RGBA, `DRAWN_HEIGHT` pixels high."""
    plate = Image.new("RGBA", (round(DRAWN_HEIGHT * ASPECT), DRAWN_HEIGHT), (255, 255, 255, 0))
    pencil = ImageDraw.Draw(plate)
    box = (0, 0, plate.width - 1, plate.height - 1)
    rim = round(RIM * DRAWN_HEIGHT)
    pencil.rounded_rectangle(box, round(RADIUS * DRAWN_HEIGHT), PLATE_RGBA, LIGHT_RGBA, rim)
    left, right = FEET_OF_A
    middle, half = (left + right) / 2, STROKE / 2
    # The slanted strokes of the A are parallelograms with horizontal ends.
    for foot in (left, right):
        fill(pencil, (foot - half, BOTTOM), (middle - half, TOP), (middle + half, TOP), (foot + half, BOTTOM))
    inset = (right - left) / 2 * (BOTTOM - CROSSBAR) / (BOTTOM - TOP)
    bar = 0.8 * half
    fill(pencil, (left + inset, CROSSBAR - bar), (right - inset, CROSSBAR - bar),
         (right - inset, CROSSBAR + bar), (left + inset, CROSSBAR + bar))  # fmt: skip
    left, right = STEM_OF_I - half, STEM_OF_I + half
    fill(pencil, (left, TOP), (right, TOP), (right, BOTTOM), (left, BOTTOM))
    return plate


def fill(pencil: ImageDraw.ImageDraw, *corners: Point) -> None:
    pencil.polygon([(x * DRAWN_HEIGHT, y * DRAWN_HEIGHT) for x, y in corners], LIGHT_RGBA)
