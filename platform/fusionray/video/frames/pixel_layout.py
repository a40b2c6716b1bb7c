"""Where the samples of a pixel format lie in the planes of a frame."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from av import VideoFrame
from numpy.typing import NDArray

from fusionray.errors import VideoRejected

Samples = NDArray[np.uint8] | NDArray[np.uint16]

_YUV = re.compile(r"yuv(j|a)?(420|422|440|444|411)p(9|10|12|14|16)?(le)?")
_GREY = re.compile(r"gray(9|10|12|14|16)?(le)?")
_PLANAR_RGB = re.compile(r"gbra?p(9|10|12|14|16)?(le)?")
_PACKED_RGB = re.compile(r"(?=[rgba0x]{3,4})([rgba0x]{4}|(?:rgb|bgr)24)")
# The binary logarithms of how many luma samples one chroma sample covers, across and down.
_SUBSAMPLING = {"420": (1, 1), "422": (1, 0), "440": (0, 1), "444": (0, 0), "411": (2, 0)}


@dataclass(frozen=True, slots=True)
class PixelLayout:
    """A pixel format. `channels` are the places of R, G, B in a packed pixel of `step` samples; None if it is planar.

    `across` and `down` are how many luma samples a chroma sample covers. Planes of alpha are never touched.
    """

    bits: int
    across: int = 1
    down: int = 1
    full_range: bool = False
    is_rgb: bool = False
    is_grey: bool = False
    has_alpha: bool = False
    channels: tuple[int, int, int] | None = None
    step: int = 1


@lru_cache(maxsize=64)
def read_layout(pixel_format: str) -> PixelLayout:
    """Read the layout of a pixel format by FFmpeg's name of it.

    Raises:
        VideoRejected: with the reason "pixel_format".
    """
    if found := _YUV.fullmatch(pixel_format):
        across, down = _SUBSAMPLING[found[2]]
        return PixelLayout(int(found[3] or 8), 1 << across, 1 << down, found[1] == "j", has_alpha=found[1] == "a")
    if found := _GREY.fullmatch(pixel_format):
        return PixelLayout(int(found[1] or 8), is_grey=True)
    if found := _PLANAR_RGB.fullmatch(pixel_format):
        return PixelLayout(int(found[1] or 8), is_rgb=True, has_alpha="a" in pixel_format)
    if found := _PACKED_RGB.fullmatch(pixel_format):
        letters = pixel_format.removesuffix("24")
        red, green, blue = (letters.index(letter) for letter in "rgb")
        return PixelLayout(8, is_rgb=True, has_alpha="a" in letters, channels=(red, green, blue), step=len(letters))
    raise VideoRejected(
        "pixel_format", f"the pixel format {pixel_format} is not supported; convert the video to yuv420p or yuv420p10le"
    )


def view_planes(frame: VideoFrame, layout: PixelLayout) -> list[Samples]:
    """View the three colour planes [h, w] of a frame (one if it is grey): Y, U, V, or R, G, B. Views are not copies.

    They hold until the frame is made writable.
    """
    if layout.channels is not None:
        packed = _view_plane(frame, 0, layout)
        return [packed[:, place :: layout.step] for place in layout.channels]
    if layout.is_grey:
        return [_view_plane(frame, 0, layout)]
    order = (2, 0, 1) if layout.is_rgb else (0, 1, 2)
    return [_view_plane(frame, index, layout) for index in order]


def _view_plane(frame: VideoFrame, index: int, layout: PixelLayout) -> Samples:
    plane = frame.planes[index]
    if plane.line_size <= 0:
        raise VideoRejected("pixel_format", "pictures that are stored upside down are not supported; convert the video")
    size = plane.height, plane.line_size
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(size)
    samples: Samples = rows if layout.bits == 8 else rows.view(np.uint16)
    return samples[:, : plane.width * layout.step]
