"""Draw content pictures: people of the synthetic world in front of scenes, still lifes of shapes, and landscapes.

Pictures are uint8 RGB [S,S,3].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.data.synthetic.pictures.fields import (
    Random,
    as_colour,
    colour_by,
    coordinates,
    draw_palette,
    layered_noise,
    smooth_noise,
    to_bytes,
)

Picture = NDArray[np.float32]


def draw_contents(seed: int, numbers: Sequence[int], size: int) -> list[NDArray[np.uint8]]:
    """Draw contents; people of one call are rendered together, which takes a quarter of the time."""
    randoms = [np.random.default_rng([seed, number, 0x436F6E74]) for number in numbers]
    people = [index for index, number in enumerate(numbers) if number % NUM_KINDS == 0]
    drawn = dict(zip(people, draw_people([randoms[index] for index in people], size), strict=True))
    pictures = []
    for index, (number, random) in enumerate(zip(numbers, randoms, strict=True)):
        picture = drawn[index] if index in drawn else SCENES[number % NUM_KINDS - 1](random, size)
        # A little grain, as every camera has.
        pictures.append(to_bytes(picture + random.normal(0, 0.012, (size, size, 1)).astype(np.float32)))
    return pictures


def draw_people(randoms: Sequence[Random], size: int) -> list[Picture]:
    """Draw a person of the synthetic world for each generator."""
    if not randoms:
        return []
    # Imported here: other pictures are drawn without torch.
    import torch

    from fusionray.data import synthetic

    seeds = [int(random.integers(2**31)) for random in randoms]
    people = torch.cat([synthetic.sample_identities(1, seed) for seed in seeds])
    looks = torch.cat([synthetic.sample_attributes(1, seed + 1) for seed in seeds])
    with torch.inference_mode():
        drawn = synthetic.render(people, looks, size).permute(0, 2, 3, 1).numpy()
    return list(drawn)


def still_life(random: Random, size: int) -> Picture:
    """Draw shaded balls, boxes and discs on a table in front of a wall, with shadows."""
    x, y = coordinates(size)
    palette = draw_palette(random, 6)
    line = random.uniform(0.45, 0.7)
    wall = colour_by(0.25 + 0.5 * x + 0.15 * layered_noise(random, size, 4), palette)
    table = colour_by(0.9 - 0.5 * y + 0.2 * smooth_noise(random, size, 12), palette[::-1])
    picture = np.where((y > line)[..., None], table, wall)
    light = random.uniform(-0.8, 0.8)
    for _ in range(int(random.integers(3, 8))):
        colour = draw_palette(random, 3)[1]
        radius = random.uniform(0.06, 0.2)
        middle, foot = random.uniform(0.05, 0.95), random.uniform(line, 1.0)
        across, up = (x - middle) / radius, (y - foot + radius) / radius
        shadow = np.exp(-(((across + light) / 1.3) ** 2 + ((y - foot) / (radius * 0.25)) ** 2))[..., None]
        picture = picture * (1 - 0.5 * shadow)
        if random.random() < 0.6:
            away = np.sqrt(across**2 + up**2)
            inside = np.clip((1 - away) * radius * size + 0.5, 0, 1)
            height = np.sqrt(np.clip(1 - away**2, 0, 1))
            shade = 0.25 + 0.75 * np.clip(0.7 * height - 0.5 * up - light * across * 0.6, 0, 1)
            gloss = np.clip(height - 0.4 * up - light * across * 0.5 - 1.0, 0, 1) * 3
        else:
            stretch = random.uniform(0.5, 1.0)
            near = np.minimum(1 - np.abs(across), stretch - np.abs(up - 1 + stretch))
            inside = np.clip(near * radius * size + 0.5, 0, 1)
            side = across * math.copysign(1, light) > random.uniform(0.1, 0.6)
            shade, gloss = np.where(side, 0.45, 0.95) * (0.9 + 0.1 * np.sin(up * 12)), np.float32(0)
        solid = colour * shade[..., None] + (gloss[..., None] if np.ndim(gloss) else 0)
        picture = picture * (1 - inside[..., None]) + solid * inside[..., None]
    return picture.astype(np.float32)


def landscape(random: Random, size: int) -> Picture:
    """Draw sky with clouds and a sun, ridges of hills, water or meadow, and trees."""
    x, y = coordinates(size)
    sky = draw_palette(random, 4)[::-1] * 0.5 + 0.4
    clouds = np.clip(layered_noise(random, size, 3) * 2.2 - 1.0, 0, 1)[..., None]
    picture = colour_by(y * 1.4, sky) * (1 - 0.8 * clouds) + 0.8 * clouds
    sun = np.hypot(x - random.random(), y - random.uniform(0.05, 0.35)) / random.uniform(0.04, 0.1)
    picture = picture + np.exp(-(sun**4))[..., None] * (1.0 - picture)
    hills = draw_palette(random, 5)
    axis = np.linspace(0, 1, size, dtype=np.float32)
    for layer in range(3):
        height = 0.42 + 0.16 * layer + random.uniform(-0.05, 0.05)
        ridge = sum(
            (random.normal(0, 0.06 / octave) * np.sin(math.tau * (octave * axis * 1.3 + random.random())))
            for octave in (1, 2, 4, 8, 16)
        )
        covered = np.clip((y - (height + ridge)[None]) * size + 0.5, 0, 1)[..., None]
        rough = layered_noise(random, size, 8 + 8 * layer)
        hill = colour_by(0.15 + 0.25 * layer + 0.5 * rough * (0.4 + 0.3 * layer), hills)
        picture = picture * (1 - covered) + covered * hill
    picture = np.ascontiguousarray(picture, np.float32)
    for _ in range(int(random.integers(0, 9))):
        draw_tree(random, picture, random.random(), random.uniform(0.65, 1.0), draw_palette(random, 3))
    return picture


def draw_tree(random: Random, picture: Picture, middle: float, foot: float, palette: NDArray[np.float32]) -> None:
    """Draw a tree of a trunk and blobs of leaves into a picture."""
    size = len(picture)
    height = random.uniform(0.12, 0.35) * foot
    start, top = (int(middle * size), int(foot * size)), (int(middle * size), int((foot - height) * size))
    cv2.line(picture, start, top, as_colour(palette[0], 0.6), max(1, int(height * size * 0.07)), cv2.LINE_AA)
    for _ in range(14):
        place = np.array(top) + random.normal(0, 0.16 * height * size, 2)
        colour = as_colour(palette[1], random.uniform(0.6, 1.1))
        radius = max(1, int(height * size * random.uniform(0.08, 0.2)))
        cv2.circle(picture, (int(place[0]), int(place[1])), radius, colour, -1, cv2.LINE_AA)


def street(random: Random, size: int) -> Picture:
    """Draw rows of houses with windows under a sky."""
    _, y = coordinates(size)
    picture = np.ascontiguousarray(colour_by(y + 0.2 * layered_noise(random, size, 4), draw_palette(random, 3)[::-1]))
    for row in range(2):
        left = -random.random() * 0.2
        while left < 1:
            wide = random.uniform(0.12, 0.3)
            roof = random.uniform(0.15, 0.5) + 0.2 * row
            palette = draw_palette(random, 4)
            first, last = (int(left * size), int(roof * size)), (int((left + wide) * size), size)
            cv2.rectangle(picture, first, last, as_colour(palette[1 + row]), -1)
            cv2.rectangle(picture, first, (last[0], first[1] + max(1, size // 40)), as_colour(palette[0]), -1)
            columns = int(random.integers(2, 5))
            pitch = wide / columns
            lit = random.random((32, columns))
            for floor in range(int((1 - roof) / (pitch * 1.3))):
                for column in range(columns):
                    corner = np.array([left + (column + 0.25) * pitch, roof + (floor + 0.4) * pitch * 1.3])
                    opposite = corner + np.array([0.5, 0.7]) * pitch
                    colour = palette[-1] if lit[floor % 32, column] < 0.4 else palette[0] * 0.6
                    ends = [tuple(int(value * size) for value in point) for point in (corner, opposite)]
                    cv2.rectangle(picture, ends[0], ends[1], as_colour(colour), -1)
            left += wide + random.uniform(0, 0.05)
    road = np.clip((y - 0.88) * size, 0, 1)[..., None]
    paved: Picture = picture * (1 - road) + road * np.float32(random.uniform(0.2, 0.45))
    return paved


SCENES: tuple[Callable[[Random, int], Picture], ...] = (landscape, still_life, street)
# The scenes, and people before them.
NUM_KINDS = 1 + len(SCENES)
