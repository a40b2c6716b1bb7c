"""Open an untrusted video file, and check what can be checked before any picture is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from fusionray.errors import InputMissing, VideoRejected

# Playlists and scripts are text that names other files, so only these demuxers may open a file.
_DEMUXERS = "mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,apng,nut,mxf,h264,hevc,obu,ivf,dv,m4v,rm"
_READABLE = "MP4, MOV, MKV, WebM, AVI, MPEG, GIF or WebP"


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """Limits of an untrusted video. Sizes are checked before a picture is decoded."""

    max_pixels: int = 36_000_000
    max_side: int = 16_384
    max_damaged_frames: int = 250


def open_video(path: Path, limits: VideoLimits) -> tuple[InputContainer, VideoStream]:
    """Open a file, and choose its first video stream that is no cover picture. The caller closes the container.

    Raises:
        InputMissing: there is no such file.
        VideoRejected: with the reason "not_a_video", "no_video", "unknown_codec", "no_size", "too_large" or
            "truncated".
    """
    if not path.is_file():
        raise InputMissing(f"{path}: there is no such file; check the path")
    options = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "file", "max_pixels": str(limits.max_pixels)}
    try:
        # Bytes that are not UTF-8 in a title are no reason to reject a video.
        container = av.open(str(path), "r", options=options, metadata_errors="replace")
    except av.FFmpegError as error:
        raise VideoRejected(
            "not_a_video", f"{path}: not a readable {_READABLE} file, or cut off at its start ({error.strerror})"
        ) from error
    try:
        return container, _choose_stream(path, container, limits)
    except BaseException:
        container.close()
        raise


def _choose_stream(path: Path, container: InputContainer, limits: VideoLimits) -> VideoStream:
    stream = next((found for found in container.streams.video if not is_cover(found)), None)
    if not len(container.streams):
        raise VideoRejected(
            "truncated", f"{path}: no stream is found in it: it is cut off, or damaged; copy or download it again"
        )
    if stream is None:
        raise VideoRejected("no_video", f"{path}: there is no video stream; give a file that shows pictures")
    if stream.codec_context is None:
        raise VideoRejected(
            "unknown_codec",
            f"{path}: no decoder knows its video, or the file is cut off at its start; convert it",
        )
    if not stream.codec_context.width:
        # FFmpeg forgets a size over `max_pixels`.
        raise VideoRejected(
            "no_size",
            f"{path}: its pictures have no valid size, or more than {limits.max_pixels} pixels; make it smaller",
        )
    check_size(path, stream.codec_context.width, stream.codec_context.height, limits)
    _check_end(path, stream)
    stream.codec_context.options = {"max_pixels": str(limits.max_pixels)}
    stream.codec_context.thread_type = "AUTO"
    return stream


def is_cover(stream: VideoStream) -> bool:
    """Tell whether a stream is a cover picture, not a video."""
    return bool(stream.disposition & Disposition.attached_pic)


def check_size(path: Path, width: int, height: int, limits: VideoLimits) -> None:
    """Check the size of a picture before it is decoded.

    Raises:
        VideoRejected: with the reason "too_large".
    """
    if width * height > limits.max_pixels or max(width, height) > limits.max_side:
        raise VideoRejected(
            "too_large",
            f"{path}: its pictures have {width} x {height} pixels; {limits.max_pixels} pixels and {limits.max_side} a "
            "side are the limit; make it smaller",
        )


def _check_end(path: Path, stream: VideoStream) -> None:
    """Compare the file's size with the index of its pictures, where the container has one (MP4, MOV, AVI)."""
    entries = stream.index_entries
    if not len(entries):
        return
    last = entries[-1]
    end, size = last.pos + last.size, path.stat().st_size
    if last.pos > 0 and end > size:
        raise VideoRejected(
            "truncated", f"{path}: it is cut off after {size} of at least {end} bytes; copy or download it again"
        )
