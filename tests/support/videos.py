"""Small videos for tests, made with PyAV alone, and what is read back of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av import AudioFrame, VideoFrame
from numpy.typing import NDArray

from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.reader import VideoReader, frame_time
from fusionray.video.files.writer import VideoWriter
from fusionray.video.frames.pixel_layout import read_layout, view_planes

TIME_BASE = Fraction(1, 12800)
STEADY = tuple(range(0, 12 * 512, 512))
needs_ffprobe = pytest.mark.skipif(shutil.which("ffprobe") is None, reason="ffprobe is missing: apt-get install ffmpeg")


def make_frame(pixel_format: str, width: int = 96, height: int = 64, *, phase: float = 0.0, **tags: int) -> VideoFrame:
    """Make a smooth frame of mild colours, every plane filled; `tags` are FFmpeg's numbers (`colorspace` and so on)."""
    layout = read_layout(pixel_format)
    frame = VideoFrame(width, height, pixel_format)
    for stored in frame.planes:
        np.frombuffer(memoryview(stored), np.uint8)[:] = 1
    top = (1 << layout.bits) - 1
    for index, plane in enumerate(view_planes(frame, layout)):
        rows, columns = np.mgrid[0 : plane.shape[0], 0 : plane.shape[1]] / max(plane.shape)
        wave = np.sin(3 * rows + 2 * columns + index + phase)
        middle, swing = (0.45, 0.2) if index == 0 or layout.is_rgb else (0.5, 0.08)
        plane[...] = np.rint((middle + swing * wave) * top)
    for name, value in tags.items():
        setattr(frame, name, value)
    return frame


def copy_planes(frame: VideoFrame) -> list[NDArray[np.uint8]]:
    """Copy every plane of a frame, alpha and packed pixels too, without the padding of rows."""
    layout = read_layout(frame.format.name)
    size = 1 if layout.bits == 8 else 2
    planes = []
    for plane in frame.planes:
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)
        planes.append(rows[:, : plane.width * layout.step * size].copy())
    return planes


def write_video(
    path: Path,
    times: Sequence[int] = STEADY,
    *,
    encoder: str = "libx264",
    pixel_format: str = "yuv420p",
    size: tuple[int, int] = (96, 64),
    time_base: Fraction = TIME_BASE,
    options: dict[str, str] | None = None,
    sound: bool = False,
    rotation: int = 0,
    sample_aspect: Fraction | None = None,
    tags: tuple[int, int, int, int] = (2, 2, 2, 0),
    metadata: dict[str, str] | None = None,
    chapters: bool = False,
) -> Path:
    """Write a video with frames at `times`, in units of the time base; `tags`: primaries, transfer, matrix, range."""
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream(encoder, 25, options or {"g": "5"}, time_base=time_base)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = *size, pixel_format
        context.color_primaries, context.color_trc, context.colorspace, context.color_range = tags
        if sample_aspect is not None:
            context.sample_aspect_ratio = sample_aspect
        if rotation:
            stream.set_display_rotation(rotation)
        audio = output.add_stream("aac", 48000, layout="mono") if sound else None
        if audio is not None:
            audio.metadata["language"] = "deu"
        output.metadata.update(metadata or {})
        if chapters:
            half: Any = {"time_base": Fraction(1, 1000), "metadata": {"title": "First"}}
            parts: Any = [{"id": 1, "start": 0, "end": 200, **half}, {"id": 2, "start": 200, "end": 480, **half}]
            output.set_chapters(parts)
        for number, time in enumerate(times):
            frame = make_frame(pixel_format, *size, phase=number / 4)
            frame.pts, frame.time_base = time, time_base
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if audio is not None:
            output.mux([packet for block in range(22) for packet in audio.encode(_make_tone(block))])
            output.mux(audio.encode(None))
    return path


def _make_tone(block: int) -> AudioFrame:
    wave = np.sin(np.arange(1024, dtype=np.float32) * np.float32(0.05 + block / 100))[None] / 4
    frame = AudioFrame.from_ndarray(wave.astype(np.float32), format="fltp", layout="mono")
    frame.sample_rate, frame.pts = 48000, block * 1024
    return frame


def read_packets(path: Path, kind: str) -> list[tuple[bytes, Fraction]]:
    """Read the packets of a kind of streams with their times."""
    with av.open(str(path)) as source:
        streams = [stream for stream in source.streams if stream.type == kind]
        packets = [packet for packet in source.demux(streams) if packet.pts is not None]
        return [(bytes(packet), packet.pts * packet.time_base) for packet in packets if packet.pts is not None]


def list_kinds(path: Path) -> list[str]:
    """List the kinds of the streams of a file, without that of its pictures."""
    with av.open(str(path)) as source:
        return [stream.type for stream in source.streams if stream.index != source.streams.video[0].index]


def probe(path: Path) -> dict[str, Any]:
    """Read what ffprobe prints of a file's streams, format, chapters, and first frame."""
    command = ["ffprobe", "-v", "error", "-show_streams", "-show_format", "-show_chapters", "-of", "json", str(path)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result


def rewrite(source: Path, target: Path, settings: EncoderSettings | None = None, **options: object) -> Path:
    """Write a video like another one, with all of its frames."""
    reader = VideoReader(source)
    with VideoWriter(target, reader.description, source, settings, **options) as writer:  # type: ignore[arg-type]
        for frame in reader.read_frames():
            writer.write(frame)
    return target


def times_of(path: Path) -> list[Fraction]:
    """Return when each frame is shown."""
    return [frame_time(frame) for frame in VideoReader(path).read_frames()]
