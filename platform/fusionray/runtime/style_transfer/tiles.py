"""Tiles of a picture with what surrounds them, and the statistics of features over all tiles.

Shape suffixes: C channels, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.bands.array import BandSource
from fusionray.bands.reader import Band
from fusionray.faces.face import Image
from fusionray.runtime.pixels import FloatArray

# Pixels of a tile with what surrounds it, for each of which features take some 400 bytes. Larger tiles have less around
# them, and are no faster: their features leave the cache.
TILE_PIXELS = 2**17
# Rows of a picture, and of what is made of it, that are in memory at once: wide pictures have lower bands.
BAND_BYTES = 20 * 2**20
SMALLEST_BAND, LARGEST_BAND = 64, 256


@dataclass(frozen=True)
class Tile:
    """A part of a picture, with the pixels around it on which its result depends.

    `rows` and `columns`: where the part itself lies in the picture. `pixels`: uint8 RGB [H,W,3], padded at the edges of
    the picture as the whole picture is; the part begins `above` rows below their first and `before` columns behind it,
    and has `height` and `width` with what is padded.
    """

    rows: slice
    columns: slice
    above: int
    before: int
    height: int
    width: int
    pixels: Image

    def cut(self, made: FloatArray, stride: int) -> FloatArray:
        """Cut the part itself out of features or pixels [C,H,W] that were made of `pixels`, `stride` px each."""
        top, left = self.above // stride, self.before // stride
        return made[:, top : top + self.height // stride, left : left + self.width // stride]


def cut_tiles(source: BandSource, halo: int, multiple: int) -> Iterator[list[Tile]]:
    """Cut a picture into tiles, band after band: those of a band together have the picture's width.

    `halo`, pixels around each tile, and the first row and column of each tile are multiples of `multiple`.
    """
    height = choose_band_height(source.width, halo, multiple)
    for band in source.bands(height, halo):
        yield list(cut_band(band, source, halo, multiple))


def choose_band_height(width: int, halo: int, multiple: int) -> int:
    """Choose how many rows a band has: those read with their halo and those made fit into `BAND_BYTES`."""
    rows = (BAND_BYTES // (3 * width) - 2 * halo) // 2
    return max(1, max(SMALLEST_BAND, min(rows, LARGEST_BAND)) // multiple) * multiple


def cut_band(band: Band, source: BandSource, halo: int, multiple: int) -> Iterator[Tile]:
    """Cut a band into tiles of equal width, of at most `TILE_PIXELS` each with what surrounds them."""
    width, height = source.width, band.stop - band.start
    most = max(multiple, TILE_PIXELS // (height + 2 * halo) - 2 * halo)
    count = -(-width // most)
    step = -(-width // count // multiple) * multiple
    for left in range(0, width, step):
        right, before = min(left + step, width), max(left - halo, 0)
        yield Tile(
            rows=slice(band.start, band.stop),
            columns=slice(left, right),
            above=band.start - band.top,
            before=left - before,
            height=pad_side(source.height, multiple) - band.start if band.stop == source.height else height,
            width=pad_side(width, multiple) - left if right == width else step,
            pixels=pad_picture(band.pixels[:, before : right + halo], multiple),
        )


def pad_side(side: int, multiple: int) -> int:
    """Return the length to which a side is padded: a multiple, and at least two of them."""
    return max(2 * multiple, -(-side // multiple) * multiple)


def pad_picture(picture: Image, multiple: int) -> Image:
    """Repeat the last row and column of a picture until both sides are as `pad_side` wants them."""
    missing = [pad_side(side, multiple) - side for side in picture.shape[:2]]
    if not any(missing):
        return picture
    return np.pad(picture, ((0, missing[0]), (0, missing[1]), (0, 0)), mode="edge")


class Moments:
    """Mean and variance of each channel of features that come in parts, in float64.

    Source: Chan, Golub and LeVeque (1983), the update of sums of squares by parts.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(0)
        self.squares: NDArray[np.float64] = np.zeros(0)

    def add(self, features_CHW: FloatArray) -> None:
        """Add a part."""
        flat = features_CHW.reshape(len(features_CHW), -1)
        count = flat.shape[1]
        mean = flat.mean(axis=1, dtype=np.float64)
        centred = flat - mean.astype(np.float32)[:, None]
        # Of numbers that lie around 0, float32 sums of one tile are exact enough; rows are summed one by one.
        squares = np.einsum("cn,cn->c", centred, centred).astype(np.float64)
        if not self.count:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total = self.count + count
        difference = mean - self.mean
        self.squares += squares + difference**2 * (self.count * count / total)
        self.mean += difference * (count / total)
        self.count = total

    @property
    def variance(self) -> NDArray[np.float64]:
        return self.squares / self.count
