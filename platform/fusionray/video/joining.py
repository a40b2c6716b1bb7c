"""Join the segments of a video, each encoded by itself, into one: packets are copied, and nothing is encoded anew."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import av
import numpy as np
from av import Packet
from av.container import OutputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray

from fusionray.errors import VideoNotWritten
from fusionray.video.description import VideoDescription
from fusionray.video.output_file import OutputFile


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
    output = OutputFile(path, description, source, encoder="packets of segments", leave_out=leave_out)
    try:
        with av.open(str(segments[0])) as first:
            template = first.streams.video[0]
            headers = template.codec_context.extradata

            def add_video(container: OutputContainer) -> VideoStream:
                return container.add_stream_from_template(template)

            stream = output.start(add_video)
        for segment in segments:
            with output.explain("cannot be joined"), av.open(str(segment)) as container:
                if container.streams.video[0].codec_context.extradata != headers:
                    raise VideoNotWritten(
                        f"{segment}: was encoded with other settings than {segments[0]}, perhaps by another version of "
                        "FFmpeg; remove both, and have them made again by the same"
                    )
                for packet in read_packets(container):
                    packet.dts, packet.stream = next(decoding_times), stream
                    output.mux([packet])
        output.close()
    finally:
        output.discard()


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
