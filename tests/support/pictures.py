"""Pictures of people that do not exist, for tests."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fusionray.data.synthetic import neutral_attributes, render, sample_identities

Picture = NDArray[np.uint8]
"""[H, W, 3] uint8 RGB."""


@lru_cache(maxsize=32)
def draw_person(seed: int, size: int = 192) -> Picture:
    """Draw one person, facing the viewer."""
    image_N3SS = render(sample_identities(1, seed), neutral_attributes(1), size)
    pixels: Picture = (image_N3SS[0].permute(1, 2, 0).clamp(0, 1) * 255).round().byte().numpy()
    pixels.setflags(write=False)
    return pixels


def draw_group(seeds: tuple[int, ...], size: int = 192) -> Picture:
    """Draw several people side by side."""
    return np.concatenate([draw_person(seed, size) for seed in seeds], axis=1)


def draw_empty(width: int = 200, height: int = 150) -> Picture:
    """Draw a smooth slope of colours, on which there is no face."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, np.full_like(x, 90)], axis=2).astype(np.uint8)
