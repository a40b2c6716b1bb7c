"""Films of people who walk, with sound, written in a moment."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from fusionray.faces.face import Image
from fusionray.video.frames.planes import blend_region
from tests.support.pictures import draw_empty, draw_person

SIDE, WIDTH, HEIGHT = 160, 320, 192
FRAMES = 20
MILLISECOND = Fraction(1, 1000)


def show(number: int, seeds: tuple[int, ...] = (4,)) -> Image:
    """Show people who walk to the right, on a slope of colours."""
    frame = draw_empty(WIDTH, HEIGHT).copy()
    for place, seed in enumerate(seeds):
        left = 2 + number % 50 + place * (SIDE - 10)
        shown = draw_person(seed, SIDE)[:, : WIDTH - left]
        frame[16 : 16 + SIDE, left : left + shown.shape[1]] = shown
    return frame


def to_frame(picture: Image, pixel_format: str, tags: tuple[int, int, int, int]) -> av.VideoFrame:
    """Make a frame that shows a picture, in whatever colours."""
    height, width = picture.shape[:2]
    frame = av.VideoFrame(width, height, pixel_format)
    frame.color_primaries, frame.color_trc, frame.colorspace, frame.color_range = tags
    for plane in frame.planes:
        np.frombuffer(memoryview(plane), np.uint8)[:] = 0
    blend_region(frame, (0, 0, width, height), picture, np.ones((height, width), np.float32))
    return frame


def film(
    path: Path,
    *,
    rotation: int = 0,
    faces: bool = True,
    seeds: tuple[int, ...] = (4,),
    num_frames: int = FRAMES,
    key_frames: int = 250,
    appears: int = 0,
    pixel_format: str = "yuv420p",
    tags: tuple[int, int, int, int] = (2, 2, 2, 0),
) -> str:
    """Write a film with a tone, and a key frame every so many; `rotation` stores it turned, as a phone does.

    Nobody is seen before the frame `appears`.

    `tags`: FFmpeg's numbers of primaries, transfer, matrix and range; what is shown is the same whatever they are.
    """
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"crf": "10", "g": str(key_frames)})
        upright = [show(number, seeds if faces and number >= appears else ()) for number in range(num_frames)]
        stored = [np.ascontiguousarray(np.rot90(frame, -rotation // 90)) for frame in upright]
        context = stream.codec_context
        context.height, context.width = stored[0].shape[:2]
        context.pix_fmt, context.time_base = pixel_format, MILLISECOND
        context.color_primaries, context.color_trc, context.colorspace, context.color_range = tags
        if rotation:
            stream.set_display_rotation(rotation)
        sound: Any = container.add_stream("aac", rate=48000)
        for number, picture in enumerate(stored):
            frame = to_frame(picture, pixel_format, tags)
            # One frame is shown for longer.
            frame.pts, frame.time_base = 40 * number + (100 if number > 7 else 0), MILLISECOND
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        for number in range(2 * num_frames):
            tone = np.sin(np.arange(1024 * number, 1024 * (number + 1)) / 20)[None].astype(np.float32) * 0.3
            samples = av.AudioFrame.from_ndarray(tone, format="fltp", layout="mono")
            samples.sample_rate, samples.pts = 48000, 1024 * number
            container.mux(sound.encode(samples))
        container.mux(sound.encode())
    return str(path)
