"""Segments: parts of a video between two key frames, which are found, fused and encoded each by itself."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from fusionray.video.files.reader import VideoReader

# Long beside the second or two of work that a segment begins and ends with, short beside what a killed run may lose.
SEGMENT_SECONDS = Fraction(10)
# Their later pictures change earlier ones, whatever their packets say of key frames.
NOT_CUT_CODECS = {"apng", "gif", "webp"}
# Containers that do not say when a frame is shown, only when it is decoded.
NOT_CUT_CONTAINERS = {"avi"}


@dataclass(frozen=True)
class Segment:
    """The frames with start <= time < end, in seconds of the video; None: from its beginning, to its end.

    `num_frames` by the packets of the file: damaged ones may be missing.
    """

    number: int
    start: Fraction | None
    end: Fraction | None
    num_frames: int


def plan_segments(reader: VideoReader, seconds: Fraction = SEGMENT_SECONDS) -> list[Segment]:
    """Cut a video at key frames into segments of at least so many seconds; no frame is decoded.

    A video without key frames in between, or of a kind that has none, is one segment.

    Raises: VideoRejected.
    """
    times: list[Fraction] = []
    keys: list[Fraction] = []
    num_untimed = 0
    for time, is_key in reader.list_packets():
        if time is None:
            num_untimed += 1
            continue
        times.append(time)
        if is_key:
            keys.append(time)
    described = reader.description
    if num_untimed or described.codec in NOT_CUT_CODECS or described.container in NOT_CUT_CONTAINERS:
        return [Segment(0, None, None, len(times) + num_untimed)]
    times.sort()
    bounds = times[:1]
    for key in sorted(keys):
        # The last segment is at least half as long.
        if key - bounds[-1] >= seconds and times[-1] - key >= seconds / 2:
            bounds.append(key)
    return count_frames(times, bounds[1:])


def count_frames(times: list[Fraction], cuts: list[Fraction]) -> list[Segment]:
    """Build the segments between cuts, from the times of all frames, both ascending."""
    segments: list[Segment] = []
    place = 0
    for number, (start, end) in enumerate(zip([None, *cuts], [*cuts, None], strict=True)):
        first = place
        while place < len(times) and (end is None or times[place] < end):
            place += 1
        segments.append(Segment(number, start, end, place - first))
    return segments
