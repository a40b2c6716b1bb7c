"""The first pass over a video to paint: what the painting model must know of whole frames, and where shots begin.

Shape suffixes: K measured frames, M length of what is measured of a frame.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from av import VideoFrame
from numpy.typing import NDArray

from fusionray.bands.array import ArrayBands
from fusionray.data.prefetch import map_ahead
from fusionray.errors import VideoRejected
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.style_transfer.tiled_stylizer import TiledStylizer
from fusionray.video.cuts import SEEN_SIDE, is_cut, summarise
from fusionray.video.files.reader import Damage, VideoReader
from fusionray.video.frames.planes import read_region
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance

# Frames from one that is measured to the next: what lies between is interpolated, and all of it smoothed.
MEASURED_EVERY = 4


@dataclass(frozen=True, eq=False)
class SegmentStatistics:
    """What was measured of a segment. Frames count from its first one.

    `frames` int64 [K] and `values` float32 [K,M]: the measured frames, among them the first and last of each shot;
    `cuts` int64: frames that begin a shot within the segment; `first` and `last`: summaries of its first and last
    frame, by which cuts between segments are found; `num_damaged`: frames and packets with faults.
    """

    frames: NDArray[np.int64]
    values: FloatArray
    cuts: NDArray[np.int64]
    first: NDArray[np.int16]
    last: NDArray[np.int16]
    num_frames: int
    num_damaged: int

    def encode(self) -> bytes:
        """Encode as an .npz file."""
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **{name: np.asarray(value) for name, value in vars(self).items()})
        return file.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> SegmentStatistics:
        """Decode what `encode` gave."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            counts = (int(arrays[name]) for name in ("num_frames", "num_damaged"))
            return cls(*(arrays[name] for name in ("frames", "values", "cuts", "first", "last")), *counts)


def measure_segment(
    reader: VideoReader,
    segment: Segment,
    stylizer: TiledStylizer,
    style: FloatArray,
    *,
    strength: float,
    advance: Advance,
) -> SegmentStatistics:
    """Measure every `MEASURED_EVERY`-th frame of a segment, and the first and last of each shot.

    `style`: encoded; `strength` as in `Stylizer.stylize`. Raises: VideoRejected.
    """
    damage = Damage(reader.path, reader.limits)
    summaries: list[NDArray[np.int16]] = []
    measured: dict[int, FloatArray] = {}
    cuts: list[int] = []

    def measure(number: int, frame: VideoFrame) -> None:
        if number not in measured:
            measured[number] = stylizer.measure(ArrayBands(read_whole(frame)), style, strength)

    before: VideoFrame | None = None
    number = -1
    for number, (frame, summary) in enumerate(see_frames(reader, segment, damage)):
        if before is not None and is_cut(summaries[-1], summary):
            cuts.append(number)
            measure(number - 1, before)
        if number % MEASURED_EVERY == 0 or number in cuts[-1:]:
            measure(number, frame)
        # The first and the newest.
        summaries = [*summaries[:1], summary]
        before = frame
        advance(1)
    if before is None:
        raise VideoRejected(
            "damaged",
            f"{reader.path}: no frame can be decoded from {segment.start} to {segment.end} s; repair it first",
        )
    measure(number, before)
    frames = sorted(measured)
    return SegmentStatistics(
        np.array(frames, np.int64),
        np.stack([measured[frame] for frame in frames]),
        np.array(cuts, np.int64),
        summaries[0],
        summaries[-1],
        number + 1,
        damage.number,
    )


def see_frames(reader: VideoReader, segment: Segment, damage: Damage) -> Iterator[tuple[VideoFrame, NDArray[np.int16]]]:
    """Yield the frames of a segment with their summaries, which are made ahead."""
    frames = reader.read_frames(segment.start, segment.end, damage)
    return map_ahead(lambda frame: (frame, summarise(reader.see(frame, SEEN_SIDE))), frames, at_once=2)


def read_whole(frame: VideoFrame) -> NDArray[np.uint8]:
    """Read a whole frame as uint8 sRGB [H,W,3], as it is stored."""
    return read_region(frame, (0, 0, frame.width, frame.height))
