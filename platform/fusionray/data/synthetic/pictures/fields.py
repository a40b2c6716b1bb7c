"""Planes from which pictures are composed: coordinates, smooth noise, warps; and palettes.

Planes are float32 [S,S]; colours float32 RGB in [0,1].
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.float32]
Colours = NDArray[np.float32]
Random = np.random.Generator


@lru_cache(maxsize=8)
def coordinates(size: int) -> tuple[Plane, Plane]:
    """Return x and y of pixel centres in the unit square, [S,S] each, read-only."""
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size
    x: Plane
    y: Plane
    x, y = (plane.astype(np.float32) for plane in np.meshgrid(axis, axis))
    x.flags.writeable = y.flags.writeable = False
    return x, y


def smooth_noise(random: Random, size: int, cells: int) -> Plane:
    """Draw noise in [0,1] whose bumps have a side of about 1 / `cells` of the picture."""
    # One row and column more on each side: enlarging replicates the edges.
    grid = random.random((cells + 3, cells + 3), np.float32)
    side = int(np.ceil(size * (cells + 3) / cells))
    large = cv2.resize(grid, (side, side), interpolation=cv2.INTER_CUBIC)
    start = (side - size) // 2
    cut: Plane = np.clip(large[start : start + size, start : start + size], 0.0, 1.0)
    return cut


def layered_noise(random: Random, size: int, cells: int, layers: int = 3) -> Plane:
    """Add noise of `layers` scales, each half as large and half as strong as the one before; in [0,1]."""
    drawn = np.zeros((size, size), np.float32)
    weights = [0.5**layer for layer in range(layers)]
    for layer, weight in enumerate(weights):
        drawn += weight / sum(weights) * smooth_noise(random, size, min(cells * 2**layer, size))
    return drawn


def warp(plane: NDArray[np.float32], shift_x: Plane, shift_y: Plane) -> NDArray[np.float32]:
    """Take each pixel from another place, `shift` away in unit coordinates; the picture is mirrored at its edges."""
    size = len(plane)
    x, y = coordinates(size)
    moved: NDArray[np.float32] = cv2.remap(
        plane, (x + shift_x) * size - 0.5, (y + shift_y) * size - 0.5, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    )
    return moved


def draw_palette(random: Random, count: int) -> Colours:
    """Draw colours [K,3] that go together: near one hue and its complement, from dark to light."""
    hue, spread = random.random(), random.uniform(0.03, 0.2)
    strength = random.uniform(0.15, 0.95)
    chosen = []
    for value in np.linspace(random.uniform(0.05, 0.3), random.uniform(0.75, 1.0), count):
        opposite = 0.5 if random.random() < 0.3 else 0.0
        tone = (hue + opposite + random.normal(0, spread)) % 1
        chosen.append(colorsys.hsv_to_rgb(tone, min(1.0, strength * random.uniform(0.6, 1.2)), float(value)))
    return np.asarray(chosen, np.float32)


def colour_by(field: Plane, palette: Colours) -> NDArray[np.float32]:
    """Colour a plane in [0,1] by a palette [K,3], blending neighbours: [S,S,3]."""
    place = np.clip(field, 0, 1) * (len(palette) - 1)
    below = np.minimum(place.astype(np.int32), len(palette) - 2)
    share = (place - below)[..., None]
    blended: NDArray[np.float32] = palette[below] * (1 - share) + palette[below + 1] * share
    return blended


def to_bytes(picture: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Convert RGB in [0,1] to uint8."""
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)


def as_colour(colour: Sequence[float] | Colours, factor: float = 1.0) -> tuple[float, float, float]:
    """Convert a colour to what OpenCV takes, `factor` times as bright."""
    red, green, blue = (float(channel) * factor for channel in colour)
    return red, green, blue
