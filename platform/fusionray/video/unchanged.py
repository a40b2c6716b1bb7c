"""Segments in which no face is fused, copied from the source packet by packet, where key frames allow it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusionray.video.files.encoders import EncoderSettings, choose_pixel_format
from fusionray.video.files.output_file import OutputFile
from fusionray.video.files.parameter_sets import read_parameter_sets
from fusionray.video.files.reader import Damage, VideoReader
from fusionray.video.segments import Segment

CODEC_OF = {"libx264": "h264", "h264_nvenc": "h264", "libx265": "hevc", "hevc_nvenc": "hevc"}


def copy_segment(reader: VideoReader, segment: Segment, path: Path, settings: EncoderSettings) -> bool:
    """Write the source's own packets of a segment to `path`; return whether that could be done.

    It cannot if source and result have different codecs or pixel formats, if the headers of the source are not those of
    MP4, MOV and MKV, or if pictures beside a bound of the segment depend on those across it.

    Raises: VideoRejected, VideoNotWritten.
    """
    described = reader.description
    if CODEC_OF.get(settings.encoder) != described.codec:
        return False
    if choose_pixel_format(settings.encoder, described) != described.pixel_format:
        return False
    container, stream = reader.open_at(segment.start)
    with container:
        if read_parameter_sets(described.codec, stream.codec_context.extradata) is None:
            return False
        packets = collect_packets(reader.demux(container, stream, Damage(reader.path, reader.limits)), segment)
        if packets is None:
            return False
        output = OutputFile(path, described, None, encoder=settings.encoder)
        try:
            copy = output.start(lambda target: target.add_stream_from_template(stream, opaque=True))
            for packet in packets:
                packet.stream = copy
            output.mux(packets)
            output.close()
        finally:
            output.discard()
    return True


def collect_packets(packets: Any, segment: Segment) -> list[Any] | None:
    """Collect the packets of a segment from those of the file; None if they are mixed with others."""
    collected: list[Any] = []
    for packet in packets:
        if not packet.size:
            continue
        # What an edit list leaves out is not shown, and would be if it were copied.
        if packet.pts is None or packet.is_discard:
            return None
        time = packet.pts * packet.time_base
        if not collected and segment.start is not None and time < segment.start:
            # What the seek finds before the segment.
            continue
        begins_next = segment.end is not None and time >= segment.end
        if begins_next and packet.is_keyframe and time == segment.end:
            # Pictures that are shown before this key frame, but come after it, would be lost.
            follower = next((each for each in packets if each.size and each.pts is not None), None)
            leads = follower is not None and follower.pts * follower.time_base < time
            return None if leads else collected or None
        if begins_next or (segment.start is not None and time < segment.start):
            return None
        if not collected and not packet.is_keyframe:
            return None
        collected.append(packet)
    return collected or None
