"""How the colours of a video are coded: tags, matrices and ranges, and the map between codes and sRGB.

Codes are the numbers in the planes (0 to 2^bits - 1), as float32 [H, W, 3]: Y, U, V, or R, G, B. The network sees uint8
sRGB. Pictures of standard range are shown as they are: their R'G'B' values are taken as sRGB, as players do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from av import VideoFrame
from numpy.typing import NDArray

from fusionray.errors import VideoRejected
from fusionray.faces.face import Image
from fusionray.video.frames.pixel_layout import PixelLayout, Samples, read_layout
from fusionray.video.frames.transfer import HdrTransfer, choose_hdr_transfer

Floats = NDArray[np.float32]

# FFmpeg's names of its numbers (libavutil/pixfmt.h, as `ffprobe` prints them).
PRIMARIES = {1: "bt709", 2: "unknown", 4: "bt470m", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "film",
             9: "bt2020", 10: "smpte428", 11: "smpte431", 12: "smpte432", 22: "ebu3213"}  # fmt: skip
TRANSFERS = {1: "bt709", 2: "unknown", 4: "bt470m", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "linear",
             9: "log100", 10: "log316", 11: "iec61966-2-4", 12: "bt1361e", 13: "iec61966-2-1", 14: "bt2020-10",
             15: "bt2020-12", 16: "smpte2084", 17: "smpte428", 18: "arib-std-b67"}  # fmt: skip
MATRICES = {0: "gbr", 1: "bt709", 2: "unknown", 4: "fcc", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "ycgco",
            9: "bt2020nc", 10: "bt2020c", 11: "smpte2085", 12: "chroma-derived-nc", 13: "chroma-derived-c",
            14: "ictcp"}  # fmt: skip
RANGES = {0: "unknown", 1: "tv", 2: "pc"}

# The shares of red and blue in the luma. Source: ITU-R BT.601, BT.709, BT.2020, SMPTE 240M, FCC 73.682.
_LUMA_SHARES = {
    "bt709": (0.2126, 0.0722),
    "fcc": (0.30, 0.11),
    "bt470bg": (0.299, 0.114),
    "smpte170m": (0.299, 0.114),
    "smpte240m": (0.212, 0.087),
    "bt2020nc": (0.2627, 0.0593),
}
# Players take an untagged video of so many lines for HD.
_HD_LINES = 720


@dataclass(frozen=True, slots=True)
class ColourTags:
    """The colour tags of a video, by FFmpeg's names; "unknown" where it has none. `range` is "tv" or "pc" (full)."""

    primaries: str = "unknown"
    transfer: str = "unknown"
    matrix: str = "unknown"
    range: str = "unknown"

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Return FFmpeg's numbers of primaries, transfer, matrix and range."""
        tables = ((PRIMARIES, self.primaries), (TRANSFERS, self.transfer), (MATRICES, self.matrix))
        primaries, transfer, matrix = (_number_of(table, name) for table, name in tables)
        return primaries, transfer, matrix, _number_of(RANGES, self.range)


def _number_of(table: dict[int, str], name: str) -> int:
    return next(number for number, known in table.items() if known == name)


def name_tags(primaries: int, transfer: int, matrix: int, color_range: int) -> ColourTags:
    """Name FFmpeg's numbers; "unknown" for those that have no name."""
    return ColourTags(
        PRIMARIES.get(primaries, "unknown"),
        TRANSFERS.get(transfer, "unknown"),
        MATRICES.get(matrix, "unknown"),
        RANGES.get(color_range, "unknown"),
    )


@dataclass(frozen=True, eq=False)
class ColourMap:
    """The map between codes and the sRGB that the network sees; see `map_of`.

    `to_signal` [3, 4] maps codes to R'G'B' of 0 to 1, `to_codes` back. `hdr` is None for standard range.
    """

    layout: PixelLayout
    to_signal: Floats
    to_codes: Floats
    hdr: HdrTransfer | None

    def codes_to_rgb(self, codes: Floats) -> Image:
        """Map codes to uint8 sRGB [H, W, 3]; what sRGB cannot show is clipped."""
        if self.hdr is None:
            return np.asarray(cv2.add(cv2.transform(codes, self.to_signal * 255), (0, 0, 0, 0), dtype=cv2.CV_8U))
        return self.hdr.to_srgb(cv2.transform(codes, self.to_signal))

    def show(self, samples: Samples) -> Image:
        """Map samples of planes [H, W, 3] to uint8 sRGB, to look at a whole frame.

        It is at most 1 off what `codes_to_rgb` gives, and for 8 bits takes a ninth of the time.
        """
        if self.hdr is None and samples.dtype == np.uint8:
            return np.asarray(cv2.transform(samples, self.to_signal * 255), np.uint8)
        return self.codes_to_rgb(samples.astype(np.float32))

    def rgb_to_codes(self, rgb: Image | Floats) -> Floats:
        """Map sRGB, uint8 or float32 of 0 to 1, to codes that are neither rounded nor clipped."""
        if self.hdr is not None:
            return np.asarray(cv2.transform(self.hdr.from_srgb(rgb), self.to_codes), np.float32)
        scale = 255 if rgb.dtype == np.uint8 else 1
        matrix = (self.to_codes / np.array([scale, scale, scale, 1])).astype(np.float32)
        return np.asarray(cv2.transform(rgb.astype(np.float32), matrix), np.float32)


def map_of(frame: VideoFrame) -> ColourMap:
    """Choose the colour map of a frame by its pixel format and its tags.

    Without a tag, the matrix is BT.709 from 720 lines on and BT.601 below, the range is limited (full for "yuvj"), and
    the transfer is that of standard range. Primaries of standard range are not converted.

    Raises:
        VideoRejected: with the reason "pixel_format" or "colour_matrix".
    """
    return _build_map(frame.format.name, frame.colorspace, frame.color_range, frame.color_trc, frame.height)


@lru_cache(maxsize=32)
def _build_map(pixel_format: str, matrix: int, color_range: int, transfer: int, height: int) -> ColourMap:
    layout = read_layout(pixel_format)
    full = layout.full_range or color_range == 2
    if layout.is_rgb:
        # RGB is full range unless it is tagged otherwise.
        to_signal = _rgb_to_signal(layout.bits, color_range == 1)
    else:
        to_signal = _yuv_to_signal(layout.bits, full, _shares(matrix, height))
    inverse = np.linalg.inv(np.vstack([to_signal, [0, 0, 0, 1]]))[:3]
    hdr = choose_hdr_transfer(TRANSFERS.get(transfer, "unknown"))
    return ColourMap(layout, to_signal.astype(np.float32), inverse.astype(np.float32), hdr)


def _shares(matrix: int, height: int) -> tuple[float, float]:
    name = MATRICES.get(matrix, "unknown")
    if name in {"unknown", "gbr"}:
        name = "bt709" if height >= _HD_LINES else "smpte170m"
    if name not in _LUMA_SHARES:
        raise VideoRejected("colour_matrix", f"the colour matrix {name} is not supported; convert the video to bt709")
    return _LUMA_SHARES[name]


def _yuv_to_signal(bits: int, full: bool, shares: tuple[float, float]) -> NDArray[np.float64]:
    """Return [3, 4]: Y'CbCr codes to R'G'B' of 0 to 1. Source: ITU-R BT.601, BT.709 and BT.2020, quantisation."""
    top = 2.0**bits - 1
    step = 2.0 ** (bits - 8)
    zero, luma_span, chroma_span = (0.0, top, top) if full else (16 * step, 219 * step, 224 * step)
    red, blue = shares
    green = 1 - red - blue
    linear = np.array(
        [
            [1, 0, 2 * (1 - red)],
            [1, -2 * (1 - blue) * blue / green, -2 * (1 - red) * red / green],
            [1, 2 * (1 - blue), 0],
        ]
    ) / np.array([luma_span, chroma_span, chroma_span])
    offset = np.array([zero, 128 * step, 128 * step])
    return np.column_stack([linear, -linear @ offset])


def _rgb_to_signal(bits: int, limited: bool) -> NDArray[np.float64]:
    step = 2.0 ** (bits - 8)
    zero, span = (16 * step, 219 * step) if limited else (0.0, 2.0**bits - 1)
    return np.column_stack([np.eye(3) / span, np.full(3, -zero / span)])
