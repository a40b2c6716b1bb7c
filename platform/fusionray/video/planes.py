"""Read a region of a frame's planes as RGB, and write what changed in it back; the rest keeps its bits.

What is written is a difference: what a face model changed in RGB, as a difference of the planes. Where nothing changed
nothing is rounded, and colours that RGB of 8 bits cannot hold - more bits, highlights, what is outside of the gamut -
stay in what is added to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import Image
from fusionray.video.colour import ColourSpace, FloatArray

PlaneArray = NDArray[Any]
# Formats whose planes are edited where they are, with the bits of a value; frames of other formats are converted.
PLANAR = {
    **{f"yuv{layout}p": 8 for layout in ("420", "422", "444")},
    **{f"yuvj{layout}p": 8 for layout in ("420", "422", "444")},
    **{f"yuv{layout}p{bits}le": bits for layout in ("420", "422", "444") for bits in (10, 12)},
}
Box = tuple[int, int, int, int]
"""Left, top, right, bottom (exclusive), in pixels of the stored frame."""
# What a smoothed chroma sample reads beside the region, so that its edge is no edge of the picture.
RIM = 4


@dataclass(frozen=True, eq=False)
class FramePlanes:
    """Luma [H,W] and two chroma planes of a frame, uint8 or uint16, which share the frame's memory.

    `across` and `down`: luma pixels for one chroma pixel, 1 or 2. `space`: what the planes mean. Chroma lies at the
    left luma pixel of two, and between the rows, as in nearly all videos (MPEG-2 and H.264).
    """

    luma: PlaneArray
    chroma: tuple[PlaneArray, PlaneArray]
    across: int
    down: int
    space: ColourSpace

    @classmethod
    def of(cls, frame: av.VideoFrame, space: ColourSpace) -> FramePlanes:
        """See the planes of a writable frame of one of the PLANAR formats."""
        kind: Any = np.uint8 if space.bits == 8 else np.dtype("<u2")
        width, height = frame.width, frame.height
        chroma = (frame.format.chroma_width(width), frame.format.chroma_height(height))

        def view(number: int, columns: int, rows: int) -> PlaneArray:
            plane = frame.planes[number]
            lines: PlaneArray = np.frombuffer(memoryview(plane), kind).reshape(plane.height, -1)
            return lines[:rows, :columns]

        return cls(
            view(0, width, height),
            (view(1, *chroma), view(2, *chroma)),
            1 if chroma[0] == width else 2,
            1 if chroma[1] == height else 2,
            space,
        )

    def read(self, box: Box) -> Image:
        """Read a region as uint8 RGB [h,w,3], as a face model takes it; HDR is mapped around the reference white."""
        signal = transform(self.stored(box), *self.space.to_rgb)
        return np.asarray(np.rint(self.space.show(signal) * 255), np.uint8)

    def stored(self, box: Box) -> FloatArray:
        """Read a region as stored values over the largest one, [h,w,3], chroma enlarged to the size of luma."""
        left, top, right, bottom = box
        shape = (right - left, bottom - top)
        planes = [self.luma[top:bottom, left:right].astype(np.float32)]
        for plane in self.chroma:
            # Chroma sample c lies at luma pixel across * c, and at down * c + (down - 1) / 2.
            matrix = np.array([[1 / self.across, 0, 0], [0, 1 / self.down, (1 / self.down - 1) / 2]])
            first = (max(0, left // self.across - 1), max(0, top // self.down - 1))
            last = (right // self.across + 2, bottom // self.down + 2)
            part = plane[first[1] : last[1], first[0] : last[0]].astype(np.float32)
            matrix[:, 2] += matrix[:, :2] @ (left, top) - first
            flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
            planes.append(np.asarray(cv2.warpAffine(part, matrix, shape, flags=flags, borderMode=cv2.BORDER_REPLICATE)))
        return np.asarray(np.dstack(planes) / np.float32(self.space.largest), np.float32)

    def write(self, box: Box, before: Image, after: Image) -> None:
        """Add to the planes what changed in a region from `before`, as `read` gave it, to `after`, both uint8 RGB."""
        changed = np.any(before != after, axis=2)
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        if not len(rows):
            return
        # Whole chroma samples, and a rim in which nothing changed.
        low = np.array([columns[0], rows[0]]) + box[:2] - RIM
        high = np.array([columns[-1], rows[-1]]) + box[:2] + RIM + 1
        low = np.maximum(low - low % 2, (box[0] + box[0] % 2, box[1] + box[1] % 2))
        high = np.minimum(high + high % 2, box[2:])
        part = np.s_[low[1] - box[1] : high[1] - box[1], low[0] - box[0] : high[0] - box[0]]
        signals = [
            self.space.restore(picture[part].astype(np.float32) / np.float32(255)) for picture in (before, after)
        ]
        difference = transform(signals[1] - signals[0], self.space.from_rgb[0], np.zeros(3, np.float32))
        difference *= self.space.largest
        left, top = int(low[0]), int(low[1])
        self.add(self.luma, difference[..., 0], left, top)
        for number, plane in enumerate(self.chroma, 1):
            reduced = self.reduce(np.ascontiguousarray(difference[..., number]))
            self.add(plane, reduced, left // self.across, top // self.down)

    def reduce(self, plane: FloatArray) -> FloatArray:
        """Reduce a plane [h,w] that begins at even pixels to the size of chroma, where its samples lie."""
        if self.across == 2:
            smooth = cv2.filter2D(plane, -1, np.array([[0.25, 0.5, 0.25]]), borderType=cv2.BORDER_REPLICATE)
            plane = np.asarray(smooth, np.float32)[:, ::2]
        if self.down == 2:
            even = np.vstack([plane, plane[-1:]]) if len(plane) % 2 else plane
            plane = np.asarray((even[::2] + even[1::2]) / 2, np.float32)
        return plane

    def add(self, plane: PlaneArray, difference: FloatArray, left: int, top: int) -> None:
        """Add a difference to a part of a plane, rounded, within its values."""
        part = plane[top : top + len(difference), left : left + difference.shape[1]]
        step = difference[: part.shape[0], : part.shape[1]]
        part[...] = np.clip(np.rint(part + step), 0, self.space.largest).astype(plane.dtype)


def transform(pixels: FloatArray, matrix: FloatArray, offset: FloatArray) -> FloatArray:
    """Apply a matrix [3,3] and an offset [3] to pixels [h,w,3]."""
    return np.asarray(cv2.transform(pixels, np.column_stack([matrix, offset])), np.float32)
