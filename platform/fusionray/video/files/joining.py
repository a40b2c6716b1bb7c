"""Join the segments of a video, each encoded by itself, into one: packets are copied, and nothing is encoded anew."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av import Packet
from av.container import OutputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray

from fusionray.errors import VideoNotWritten
from fusionray.video.files.description import VideoDescription
from fusionray.video.files.output_file import OutputFile
from fusionray.video.files.parameter_sets import TAGS, read_parameter_sets


def join_segments(
    segments: Sequence[Path],
    path: Path,
    description: VideoDescription,
    source: Path | None = None,
    *,
    leave_out: Collection[str] = (),
) -> None:
    """Write the frames of consecutive segments to `path`, with all else from `source`; see `OutputFile`.

    Frames are shown when they are in their segments. When they are decoded is reckoned anew for the whole: an encoder
    that begins in the middle of a video does not know what came before.

    Raises:
        VideoNotWritten: a segment does not begin after the one before, or was encoded otherwise; or the container
            cannot hold it.
        InputMissing, VideoRejected: `source` cannot be read.
    """
    times = [list_times(segment) for segment in segments]
    decoding_times = iter(choose_decoding_times(np.concatenate(times)).tolist())
    headers = [read_headers(segment) for segment in segments]
    check_headers(segments, headers)
    output = OutputFile(path, description, source, encoder="packets of segments", leave_out=leave_out)
    try:
        with av.open(str(segments[0])) as first:
            template = first.streams.video[0]

            def add_video(container: OutputContainer) -> VideoStream:
                video = container.add_stream_from_template(template, opaque=True)
                if any(other != headers[0] for other in headers):
                    video.codec_context.codec_tag = TAGS[headers[0].codec]
                return video

            stream = output.start(add_video)
        before = headers[0]
        for segment, own in zip(segments, headers, strict=True):
            # Each change of settings brings along what a decoder must know.
            sets = b"" if own == before else own.sets
            before = own
            with output.explain("cannot be joined"), av.open(str(segment)) as container:
                for packet in read_packets(container):
                    whole, sets = with_sets(packet, sets), b""
                    whole.dts, whole.stream = next(decoding_times), stream
                    output.mux([whole])
        output.close()
    finally:
        output.discard()


@dataclass(frozen=True)
class Headers:
    """What a decoder is told of a segment before its packets; `sets` is the part that packets can carry.

    `picture`: width, height and pixel format.
    """

    codec: str
    picture: tuple[int, int, str | None]
    data: bytes | None
    sets: bytes


def read_headers(segment: Path) -> Headers:
    """Read the headers of a segment."""
    with av.open(str(segment)) as container:
        context = container.streams.video[0].codec_context
        codec = context.codec.canonical_name
        picture = context.width, context.height, context.pix_fmt
        return Headers(codec, picture, context.extradata, read_parameter_sets(codec, context.extradata) or b"")


def check_headers(segments: Sequence[Path], headers: Sequence[Headers]) -> None:
    """Check that the segments can follow each other in one stream.

    Raises: VideoNotWritten.
    """
    for segment, own in zip(segments, headers, strict=True):
        first = headers[0]
        same = (own.codec, own.picture) == (first.codec, first.picture)
        if own != first and not (same and own.sets and first.sets):
            raise VideoNotWritten(
                f"{segment}: was encoded with other settings than {segments[0]}, perhaps by another version of FFmpeg; "
                "remove both, and have them made again by the same"
            )


def with_sets(packet: Packet[VideoStream], sets: bytes) -> Packet[VideoStream]:
    """Return a packet with parameter sets at its head."""
    if not sets:
        return packet
    whole: Packet[Any] = Packet(sets + bytes(packet))
    whole.pts, whole.duration, whole.time_base = packet.pts, packet.duration, packet.time_base
    whole.is_keyframe = packet.is_keyframe
    return whole


def list_times(segment: Path) -> NDArray[np.int64]:
    """List when the frames of a segment are shown, [N] in the order of decoding, in its units of time."""
    with av.open(str(segment)) as container:
        return np.array([packet.pts for packet in read_packets(container)], np.int64)


def read_packets(container: av.container.InputContainer) -> Iterator[Packet[VideoStream]]:
    """Yield the packets of the pictures, without the empty one at the end."""
    return (packet for packet in container.demux(container.streams.video[0]) if packet.size)


def choose_decoding_times(shown: NDArray[np.int64]) -> NDArray[np.int64]:
    """Choose when frames are decoded, [N] strictly rising, from when they are shown, [N] in the order of decoding.

    Each is decoded when an earlier one is shown: as many frames earlier as the order of decoding needs, so that none is
    decoded after it is shown. The first ones are decoded before the video begins.

    Raises: VideoNotWritten if two frames are shown at the same time.
    """
    order = np.argsort(shown, kind="stable")
    ascending = shown[order]
    if np.any(np.diff(ascending) <= 0):
        raise VideoNotWritten("segments overlap: two frames are shown at the same time; remove them, and begin again")
    rank = np.empty(len(shown), np.int64)
    rank[order] = np.arange(len(shown))
    delay = int(np.max(np.arange(len(shown)) - rank))
    before = ascending[:delay] - ascending[delay] + ascending[0]
    return np.concatenate([before, ascending[: len(ascending) - delay]])
