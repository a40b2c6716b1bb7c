"""Draw style pictures: textures of brush strokes, hatching, mosaic, marbling, halftone and watercolour.

Each has its own palette, scale and tones. Pictures are uint8 RGB [S,S,3].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.data.synthetic.pictures.fields import (
    Colours,
    Plane,
    Random,
    as_colour,
    colour_by,
    coordinates,
    draw_palette,
    layered_noise,
    smooth_noise,
    to_bytes,
    warp,
)

Picture = NDArray[np.float32]
# Strokes, cells and dots are drawn with fractions of a pixel, in sixteenths.
SHIFT = 4


def draw_style(seed: int, number: int, size: int) -> NDArray[np.uint8]:
    """Draw one style; equal arguments give equal pictures."""
    random = np.random.default_rng([seed, number, 0x5374796C])
    kind = STYLES[number % len(STYLES)]
    palette = draw_palette(random, int(random.integers(3, 7)))
    tone = layered_noise(random, size, int(random.integers(2, 5)))
    low, high = np.percentile(tone[::8, ::8], (5, 95))
    return to_bytes(kind(random, size, np.clip((tone - low) / (high - low + 1e-3), 0, 1), palette))


def strokes(random: Random, size: int, tone: Plane, palette: Colours) -> Picture:
    """Paint short thick strokes along a flow, from large to small."""
    picture = np.ascontiguousarray(colour_by(tone, palette))
    flow = smooth_noise(random, size, int(random.integers(2, 4))) * math.tau * random.uniform(0.5, 1.0)
    thickness, reach = random.uniform(0.025, 0.055), random.uniform(0.07, 0.14)
    count = int(0.7 / (thickness * reach))
    places = random.random((count, 2))
    rows, columns = np.minimum(places * size, size - 1).astype(int).T
    shrink = np.linspace(1.0, 0.5, count)
    along = np.stack([np.cos(flow[rows, columns]), np.sin(flow[rows, columns])], axis=1) * (reach / 2 * shrink)[:, None]
    ends = np.concatenate([places[:, ::-1] - along, places[:, ::-1] + along], axis=1) * (size * 2**SHIFT)
    jitter = random.normal(0, 0.09, count).astype(np.float32)
    colours = colour_by((tone[rows, columns] + jitter)[:, None], palette)[:, 0]
    widths = np.maximum(1, np.rint(thickness * size * shrink)).astype(int).tolist()
    for (x0, y0, x1, y1), colour, wide in zip(ends.astype(int).tolist(), colours, widths, strict=True):
        cv2.line(picture, (x0, y0), (x1, y1), as_colour(colour, 0.75), wide + 1, cv2.LINE_AA, SHIFT)
        cv2.line(picture, (x0, y0), (x1, y1), as_colour(colour, 1.05), max(1, wide - 1), cv2.LINE_AA, SHIFT)
    return picture


def hatching(random: Random, size: int, tone: Plane, palette: Colours) -> Picture:
    """Hatch in up to three directions, the more lines the darker the tone."""
    x, y = coordinates(size)
    sway = 0.04 * smooth_noise(random, size, 5)
    lines, first = random.uniform(14, 30), random.random() * math.pi
    ink = np.zeros((size, size), np.float32)
    for layer in range(int(random.integers(1, 4))):
        angle = first + layer * random.uniform(0.5, 1.2)
        wave = np.sin(math.tau * lines * (x * math.cos(angle) + y * math.sin(angle) + sway))
        wanted = np.clip(1.1 - 0.35 * layer - tone, 0.02, 0.9)
        ink = np.maximum(ink, np.clip((wave - 1 + 2 * wanted) * 3 + 0.5, 0, 1))
    paper = palette[-1] * 0.4 + 0.6
    picture: Picture = paper + ink[..., None] * (palette[0] * 0.8 - paper)
    return picture


def mosaic(random: Random, size: int, tone: Plane, palette: Colours) -> Picture:
    """Lay stones of one colour each, with joints between them."""
    cells = int(random.integers(8, 20))
    grid = np.stack(np.meshgrid(np.arange(-1, cells + 1), np.arange(-1, cells + 1)), axis=-1).reshape(-1, 2)
    centres = (grid + 0.5 + random.uniform(-1, 1, grid.shape) * random.uniform(0.1, 0.45)) / cells
    seeds = np.full((size, size), 255, np.uint8)
    places = np.clip(centres * size, 0, size - 1).astype(int)
    seeds[places[:, 1], places[:, 0]] = 0
    distance, labels = cv2.distanceTransformWithLabels(
        seeds, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
    )
    stone_of = labels[places[:, 1], places[:, 0]]
    colours = np.zeros((labels.max() + 1, 3), np.float32)
    stone_tone = tone[places[:, 1], places[:, 0]] + random.normal(0, 0.12, len(places)).astype(np.float32)
    colours[stone_of] = colour_by(stone_tone[:, None], palette)[:, 0]
    picture = colours[labels]
    edges = np.zeros((size, size), np.float32)
    edges[:, 1:] = labels[:, 1:] != labels[:, :-1]
    edges[1:] = np.maximum(edges[1:], labels[1:] != labels[:-1])
    wide = max(3, int(size * random.uniform(0.01, 0.02)) | 1)
    joint = np.clip(cv2.GaussianBlur(edges, (wide, wide), 0) * 2.2, 0, 1)[..., None]
    relief = 1.08 - 0.25 * np.clip(distance * cells / size, 0, 1)[..., None]
    laid: Picture = picture * relief * (1 - joint) + joint * palette[0] * random.uniform(0.3, 1.0)
    return laid


def marbling(random: Random, size: int, tone: Plane, palette: Colours) -> Picture:
    """Swirl bands of colour."""
    x, y = coordinates(size)
    strength = random.uniform(0.15, 0.4)
    first, second = (smooth_noise(random, size, 3) - 0.5 for _ in range(2))
    bent = warp(first, strength * first, strength * second)
    field = (x * random.uniform(-1, 1) + y * random.uniform(-1, 1) + strength * 3 * bent) * random.uniform(3, 7)
    bands = np.abs(np.mod(field + 0.5 * tone, 2.0) - 1.0)
    veins = np.clip(1 - np.abs(np.mod(field * 2, 1.0) - 0.5) * random.uniform(8, 16), 0, 1)[..., None]
    picture = colour_by(np.clip((bands - 0.5) * 2.5 + 0.5, 0, 1), palette)
    veined: Picture = picture + 0.6 * veins * (palette[int(random.integers(len(palette)))] - picture)
    return veined


def halftone(random: Random, size: int, tone: Plane, palette: Colours) -> Picture:
    """Print dots, the larger the darker the tone, in one or two inks."""
    x, y = coordinates(size)
    dots = random.uniform(12, 26)
    picture = np.broadcast_to(palette[-1] * 0.5 + 0.5, (size, size, 3))
    for layer in range(int(random.integers(1, 3))):
        angle = random.random() * math.pi / 2
        u, v = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
        wave = (np.cos(math.tau * dots * u) + np.cos(math.tau * dots * v)) / 4 + 0.5
        field = tone if layer == 0 else smooth_noise(random, size, 3)
        ink = np.clip((wave - 0.15 - 0.75 * field) * 6 + 0.5, 0, 1)[..., None]
        picture = picture * (1 - ink) + ink * palette[layer]
    return picture


def watercolour(random: Random, size: int, tone: Plane, palette: Colours) -> Picture:
    """Lay transparent washes with dark rims on rough paper."""
    picture = np.broadcast_to(np.float32(0.96) - 0.1 * (1 - palette[-1]), (size, size, 3))
    bend = (smooth_noise(random, size, 10) - 0.5, smooth_noise(random, size, 10) - 0.5)
    for layer in range(4):
        field = layered_noise(random, size, int(random.integers(3, 6)), 2) + 0.25 * (tone - 0.5)
        field = warp(field, 0.06 * bend[0], 0.06 * bend[1])
        level = random.uniform(0.42, 0.56)
        wash = np.clip((field - level) * 30 + 0.5, 0, 1)
        rim = np.clip(1 - np.abs(field - level) * 35, 0, 1)
        pigment = (0.55 * wash * (0.7 + 0.6 * tone) + 0.35 * rim)[..., None]
        picture = picture * (1 - pigment * (1 - palette[layer % len(palette)]))
    grain = random.normal(0, 0.035, (size, size, 1)).astype(np.float32)
    paper = (smooth_noise(random, size, min(size, 60)) - 0.5)[..., None] * 0.12
    return picture + grain + paper


Draw = Callable[[Random, int, Plane, Colours], Picture]
STYLES: tuple[Draw, ...] = (strokes, hatching, mosaic, marbling, halftone, watercolour)
