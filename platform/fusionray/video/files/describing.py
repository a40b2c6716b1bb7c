"""Describe a video by its headers and its first picture."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av import VideoFrame
from av.container import InputContainer
from av.sidedata.sidedata import SideData, Type
from av.video.stream import VideoStream

from fusionray.errors import VideoRejected
from fusionray.video.files.animation import describe_webp, is_webp
from fusionray.video.files.description import HdrMetadata, VideoDescription
from fusionray.video.files.opening import VideoLimits, check_size, open_video
from fusionray.video.frames.colour import name_tags
from fusionray.video.frames.orientation import DisplayMatrix, matrix_of_rotation
from fusionray.video.frames.pixel_layout import read_layout

# Decoders hold back pictures, and the first packets may be damaged: so many are tried.
_PACKETS_TRIED = 300
# FFmpeg's numbers: the first letter is the field that is coded first (top, bottom), the second the one shown first.
_FIELD_ORDERS = {1: "progressive", 2: "tt", 3: "bb", 4: "tb", 5: "bt"}


def describe_video(path: Path, limits: VideoLimits | None = None) -> VideoDescription:
    """Describe the first video stream of a file; its first picture is decoded.

    Raises:
        InputMissing: there is no such file.
        VideoRejected: with the reason "not_a_video", "no_video", "unknown_codec", "no_size", "too_large",
            "truncated", "no_frames" or "pixel_format".
    """
    limits = limits or VideoLimits()
    if is_webp(path):
        return describe_webp(path, limits)
    container, stream = open_video(path, limits)
    with container:
        frame = _decode_first(path, container, stream)
        check_size(path, frame.width, frame.height, limits)
        return _describe(container, stream, frame)


def _decode_first(path: Path, container: InputContainer, stream: VideoStream) -> VideoFrame:
    fault = "it has no frames"
    try:
        for tried, packet in enumerate(container.demux(stream)):
            try:
                frames = packet.decode()
            except av.FFmpegError as error:
                fault = f"its first frames are damaged ({error.strerror})"
                frames = []
            if frames:
                return frames[0]
            if tried == _PACKETS_TRIED:
                fault = f"its first {_PACKETS_TRIED} packets hold no frame"
                break
    except av.FFmpegError as error:
        fault = f"it cannot be read ({error.strerror})"
    raise VideoRejected("no_frames", f"{path}: {fault}; give a video that a player shows")


def _describe(container: InputContainer, stream: VideoStream, frame: VideoFrame) -> VideoDescription:
    time_base = stream.time_base
    assert time_base is not None  # of every stream that was read
    context = stream.codec_context
    # Formats that cannot be edited are refused before any work.
    read_layout(frame.format.name)
    # A picture says more of itself than its container does.
    primaries, transfer, matrix, color_range = (
        of_frame or of_stream
        for of_frame, of_stream in (
            (_known(frame.color_primaries), context.color_primaries),
            (_known(frame.color_trc), context.color_trc),
            (_known(frame.colorspace), context.colorspace),
            (frame.color_range, context.color_range),
        )
    )
    return VideoDescription(
        frame.width,
        frame.height,
        frame.format.name,
        context.codec.canonical_name,
        container.format.name,
        time_base,
        stream.average_rate,
        None if stream.start_time is None else stream.start_time * time_base,
        _read_duration(container, stream, time_base),
        stream.frames,
        stream.sample_aspect_ratio or Fraction(1),
        name_tags(primaries, transfer, matrix, color_range),
        _read_display_matrix(frame),
        frame.interlaced_frame,
        _FIELD_ORDERS.get(context.field_order, "unknown"),
        _read_hdr(frame),
        stream.index,
    )


def _known(number: int) -> int:
    """Return 0 for FFmpeg's number of "unspecified"."""
    return 0 if number == 2 else number


def _read_duration(container: InputContainer, stream: VideoStream, time_base: Fraction) -> Fraction | None:
    if stream.duration is not None:
        return stream.duration * time_base
    return None if container.duration is None else Fraction(container.duration, av.time_base)


def _find_side_data(frame: VideoFrame, kind: Type) -> bytes | None:
    try:
        return bytes(cast(Mapping[str, SideData], frame.side_data)[kind.name])
    except (KeyError, ValueError):
        # PyAV lists no side data at all if one is of a kind unknown to it, as in spatial video.
        return None


def _read_display_matrix(frame: VideoFrame) -> DisplayMatrix | None:
    data = _find_side_data(frame, Type.DISPLAYMATRIX)
    if data is not None:
        a, b, u, c, d, v, x, y, w = struct.unpack("=9i", data)
        return a, b, u, c, d, v, x, y, w
    return matrix_of_rotation(frame.rotation) if frame.rotation else None


def _read_hdr(frame: VideoFrame) -> HdrMetadata:
    """Read the structures AVMasteringDisplayMetadata and AVContentLightMetadata of libavutil."""
    mastering: tuple[Fraction, ...] | None = None
    content_light: tuple[int, int] | None = None
    if (data := _find_side_data(frame, Type.MASTERING_DISPLAY_METADATA)) is not None:
        *numbers, has_primaries, has_luminance = struct.unpack("=20i2i", data[:88])
        if has_primaries and has_luminance:
            mastering = tuple(Fraction(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True))
    if (data := _find_side_data(frame, Type.CONTENT_LIGHT_LEVEL)) is not None:
        greatest, average = struct.unpack("=2I", data[:8])
        content_light = (greatest, average)
    return HdrMetadata(mastering, content_light)
