"""Small videos, written in a moment, with whatever a test needs in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from fusionray.faces.face import Image

WIDTH, HEIGHT = 96, 64
TIMES = (0, 40, 80, 120, 160, 200)
MILLISECOND = Fraction(1, 1000)


def draw_frame(number: int, width: int = WIDTH, height: int = HEIGHT) -> Image:
    """Draw smooth colours that move from frame to frame."""
    y, x = np.mgrid[0:height, 0:width]
    phase = number / 5
    waves = [np.sin(x / 17 + phase), np.cos(y / 13 - phase), np.sin((x + y) / 23)]
    return np.stack([128 + 90 * wave for wave in waves], axis=2).astype(np.uint8)


def write_clip(
    path: Path,
    *,
    times: Sequence[int] = TIMES,
    pixel_format: str = "yuv420p",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    encoder: str = "libx264",
    colour: tuple[int, int, int, int] | None = None,
    rotation: int = 0,
    sample_aspect: Fraction | None = None,
    with_sound: bool = False,
    describe: Callable[[Any, Any], None] | None = None,
) -> Path:
    """Write frames that are shown at `times`, ms; `describe` may change container and stream before the first one."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(encoder, rate=25)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = *size, pixel_format
        context.time_base = MILLISECOND
        if colour:
            context.color_primaries, context.color_trc, context.colorspace, context.color_range = colour
        if sample_aspect:
            context.sample_aspect_ratio = sample_aspect
        if rotation:
            stream.set_display_rotation(rotation)
        sound: Any = container.add_stream("aac", rate=48000) if with_sound else None
        if describe:
            describe(container, stream)
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(draw_frame(number, *size), format="rgb24").reformat(format=pixel_format)
            frame.pts, frame.time_base = time, MILLISECOND
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            for number in range(12):
                tone = np.sin(np.arange(1024 * number, 1024 * (number + 1)) / 20)[None].astype(np.float32) * 0.3
                samples = av.AudioFrame.from_ndarray(tone, format="fltp", layout="mono")
                samples.sample_rate, samples.pts = 48000, 1024 * number
                container.mux(sound.encode(samples))
            container.mux(sound.encode())
    return path


def read_times(path: Path) -> list[float]:
    """Return when each frame is shown, in seconds."""
    with av.open(str(path)) as container:
        return [float(frame.pts * frame.time_base) for frame in container.decode(video=0)]


def read_packets(path: Path, kind: str) -> list[tuple[float, bytes]]:
    """Return the time and the bytes of the packets of the first stream of a kind."""
    with av.open(str(path)) as container:
        (stream,) = [each for each in container.streams if each.type == kind]
        return [
            (float(packet.pts * packet.time_base), bytes(packet)) for packet in container.demux(stream) if packet.size
        ]
