"""Read animated WebP, which FFmpeg does not decode."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from av import VideoFrame
from PIL import Image as PillowImage
from PIL import WebPImagePlugin

from fusionray.errors import VideoRejected
from fusionray.video.files.description import VideoDescription
from fusionray.video.files.opening import VideoLimits, check_size
from fusionray.video.frames.colour import ColourTags

_TIME_BASE = Fraction(1, 1000)
_FAULTS = (OSError, SyntaxError, ValueError, EOFError, MemoryError)


def is_webp(path: Path) -> bool:
    """Tell by its first bytes whether a file is a WebP picture or animation; False if there is none."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(12)
    return start[:4] == b"RIFF" and start[8:] == b"WEBP"


def describe_webp(path: Path, limits: VideoLimits) -> VideoDescription:
    """Describe a WebP animation as a video of rgb24 pictures.

    Raises:
        VideoRejected: with the reason "not_a_video" or "too_large".
    """
    with _open(path, limits) as picture:
        width, height = picture.size
        num_frames = picture.n_frames
    return VideoDescription(
        width, height, "rgb24", "webp", "webp", _TIME_BASE,
        start_seconds=Fraction(0), num_frames=num_frames,
        colour=ColourTags("bt709", "iec61966-2-1", "gbr", "pc"),
    )  # fmt: skip


def read_webp(path: Path, limits: VideoLimits) -> Iterator[VideoFrame]:
    """Yield the pictures of a WebP animation with their times; transparent pixels are blended with white.

    Raises:
        VideoRejected: with the reason "not_a_video", "too_large" or "damaged".
    """
    with _open(path, limits) as picture:
        time = 0
        for index in range(picture.n_frames):
            try:
                picture.seek(index)
                pixels = _blend_with_white(picture)
            except _FAULTS as error:
                raise VideoRejected("damaged", f"{path}: frame {index} cannot be decoded ({error})") from error
            frame = VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base, frame.color_range = time, _TIME_BASE, 2
            frame.duration = int(picture.info.get("duration", 0))
            # Frames of no duration would share a time.
            time += max(frame.duration, 1)
            yield frame


def _open(path: Path, limits: VideoLimits) -> WebPImagePlugin.WebPImageFile:
    try:
        picture = WebPImagePlugin.WebPImageFile(path)
    except PillowImage.DecompressionBombError as error:
        # Pillow has a limit of its own, beyond which it opens nothing.
        raise VideoRejected("too_large", f"{path}: {error}; make it smaller") from error
    except _FAULTS as error:
        raise VideoRejected("not_a_video", f"{path}: the WebP file is damaged ({error}); give an intact one") from error
    try:
        check_size(path, *picture.size, limits)
    except VideoRejected:
        picture.close()
        raise
    return picture


def _blend_with_white(picture: PillowImage.Image) -> np.ndarray:
    with_alpha = picture.convert("RGBA")
    ground = PillowImage.new("RGBA", with_alpha.size, (255, 255, 255, 255))
    return np.asarray(PillowImage.alpha_composite(ground, with_alpha).convert("RGB"))
