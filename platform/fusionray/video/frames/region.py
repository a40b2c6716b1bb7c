"""A box of a frame with the chroma samples around it, and the resampling between chroma and luma.

A chroma sample lies at the first of the luma samples that it covers across, and amid those that it covers down (MPEG-2
siting, the default of players). An interlaced frame is treated as one picture of all its lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from av import VideoFrame
from numpy.typing import NDArray

from fusionray.video.frames.colour import Floats
from fusionray.video.frames.pixel_layout import PixelLayout, Samples

Box = tuple[int, int, int, int]
"""Left, top, width, height in stored pixels, within the frame."""


@dataclass(frozen=True, slots=True)
class Region:
    """A box, and the whole chroma samples that surround it, with a rim of one: edges in luma samples of the frame.

    A chroma sample covers `across` x `down` luma samples.
    """

    box: Box
    left: int
    top: int
    right: int
    bottom: int
    across: int
    down: int

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height in luma samples."""
        return self.right - self.left, self.bottom - self.top

    def view_luma(self, plane: Samples) -> Samples:
        """View the samples of the region in a plane of luma."""
        return plane[self.top : self.bottom, self.left : self.right]

    def view_chroma(self, plane: Samples) -> Samples:
        """View the samples of the region in a plane of chroma: of an odd side, the last covers fewer luma samples."""
        columns = slice(self.left // self.across, -(-self.right // self.across))
        return plane[self.top // self.down : -(-self.bottom // self.down), columns]

    def cut_box(self, picture: NDArray[Any]) -> NDArray[Any]:
        """View the box in a picture of the region."""
        left, top, width, height = self.box
        row, column = top - self.top, left - self.left
        return picture[row : row + height, column : column + width]

    def surround(self, values: Floats, rim: float) -> Floats:
        """Surround values [height, width] of the box with those of a rim."""
        width, height = self.size
        whole = np.full((height, width), rim, np.float32)
        self.cut_box(whole)[...] = values
        return whole

    def enlarge_chroma(self, chroma: Samples) -> Floats:
        """Interpolate the region's chroma samples at its luma samples."""
        samples = chroma.astype(np.float32)
        if self.across == self.down == 1:
            return samples
        # Luma sample x lies at x / across of the chroma samples, luma sample y at (y + 0.5) / down - 0.5.
        to_chroma = np.array([[1 / self.across, 0, 0], [0, 1 / self.down, 0.5 / self.down - 0.5]])
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        return np.asarray(cv2.warpAffine(samples, to_chroma, self.size, flags=flags, borderMode=cv2.BORDER_REPLICATE))

    def reduce_to_chroma(self, values: Floats) -> Floats:
        """Reduce luma-sized values [h, w] to chroma samples where these lie: by a triangle across, by the mean down."""
        reduced = _mean_down(np.ascontiguousarray(values), self.down)
        if self.across == 1:
            return reduced
        ramp = np.arange(1, self.across + 1, dtype=np.float32)
        triangle = np.concatenate([ramp, ramp[-2::-1]]) / self.across**2
        smooth = cv2.sepFilter2D(reduced, -1, triangle, np.ones(1, np.float32), borderType=cv2.BORDER_REPLICATE)
        return np.asarray(smooth[:, :: self.across])

    def average_to_chroma(self, values: Floats) -> Floats:
        """Average the luma-sized values [h, w] that each chroma sample covers: 0 only where all of them are 0."""
        reduced = _mean_down(values, self.down)
        return _mean_down(np.ascontiguousarray(reduced.T), self.across).T


def _mean_down(values: Floats, count: int) -> Floats:
    if count == 1:
        return values
    missing = -len(values) % count
    if missing:
        values = np.concatenate([values, values[-1:].repeat(missing, 0)])
    total = values[::count].copy()
    for row in range(1, count):
        total += values[row::count]
    return total * np.float32(1 / count)


def find_region(box: Box, frame: VideoFrame, layout: PixelLayout) -> Region:
    """Find the region of a box in a frame.

    Raises:
        ValueError: the box is empty or leaves the frame.
    """
    left, top, width, height = box
    if left < 0 or top < 0 or min(width, height) < 1 or left + width > frame.width or top + height > frame.height:
        raise ValueError(f"box {box} is empty or leaves the frame of {frame.width} x {frame.height} pixels; cut it")
    across, down = layout.across, layout.down
    return Region(
        box,
        max(left // across - 1, 0) * across,
        max(top // down - 1, 0) * down,
        min((-(-(left + width) // across) + 1) * across, frame.width),
        min((-(-(top + height) // down) + 1) * down, frame.height),
        across,
        down,
    )
