"""A picture in memory, read by bands as a file is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fusionray.bands.reader import Band


class BandSource(Protocol):
    """A picture that is read from its top, as often as wanted (`BandReader`, `ArrayBands`)."""

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...

    def bands(self, height: int, halo: int = 0) -> Iterator[Band]:
        """Yield bands of `height` rows with `halo` rows around them, as `BandReader.bands`."""
        ...


class ArrayBands:
    """A picture, uint8 RGB [H,W,3], as a `BandSource`."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self.pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def bands(self, height: int, halo: int = 0) -> Iterator[Band]:
        for start in range(0, self.height, height):
            stop, top = min(start + height, self.height), max(start - halo, 0)
            yield Band(start, stop, top, self.pixels[top : stop + halo])
