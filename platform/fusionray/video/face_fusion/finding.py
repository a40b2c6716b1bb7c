"""The first pass over a video: the faces of each segment, and which of them go on in the next one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionray.data.prefetch import map_ahead
from fusionray.errors import VideoRejected
from fusionray.faces.detectors.following import FaceFollower
from fusionray.runtime.fuser import Fuser
from fusionray.video.cuts import is_cut
from fusionray.video.face_fusion.tracking import FARTHEST, LONGEST_LOSS, FaceTracker, distance_between
from fusionray.video.face_fusion.tracks import Track, join
from fusionray.video.files.reader import Damage, VideoReader
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance

# Longest side of the pictures that are searched: a face of 40 pixels of a video of 4K has 20 in them.
SEARCH_SIDE = 1920

# The arrays of a track that are there for each of its frames.
TRACK_ARRAYS = ("frames", "landmarks", "boxes", "found")


@dataclass(frozen=True, eq=False)
class SegmentFaces:
    """The faces of a segment. Frames of `tracks` count from its first one; points are in pixels of the upright pictures
    that were searched. `first` and `last`: summaries of its first and last frame, by which cuts are found.
    `num_damaged`: frames and packets with faults.
    """

    tracks: list[Track]
    num_frames: int
    num_damaged: int
    first: NDArray[np.int16]
    last: NDArray[np.int16]

    def encode(self) -> bytes:
        """Encode as an .npz file."""
        arrays: dict[str, NDArray[Any]] = {
            "first": self.first,
            "last": self.last,
            "num_frames": np.array(self.num_frames),
            "num_damaged": np.array(self.num_damaged),
        }
        for number, track in enumerate(self.tracks):
            identity = np.empty(0, np.float32) if track.identity is None else track.identity
            values = {name: getattr(track, name) for name in TRACK_ARRAYS} | {"identity": identity}
            arrays |= {f"{number}.{name}": array for name, array in values.items()}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> SegmentFaces:
        """Decode what `encode` gave."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            count = sum(name.endswith(".frames") for name in arrays)
            tracks = []
            for number in range(count):
                identity = arrays[f"{number}.identity"]
                values: Any = {name: arrays[f"{number}.{name}"] for name in TRACK_ARRAYS}
                tracks.append(Track(**values, identity=identity if identity.size else None))
            counts = int(arrays["num_frames"]), int(arrays["num_damaged"])
            return cls(tracks, *counts, arrays["first"], arrays["last"])


def find_faces(
    reader: VideoReader, segment: Segment, fuser: Fuser, advance: Advance, *, with_identities: bool
) -> SegmentFaces:
    """Find and follow the faces of a segment.

    Raises: VideoRejected; ImageRejected if the model cannot tell identities apart.
    """
    damage = Damage(reader.path, reader.limits)
    embed = fuser.preprocessor.embed_face if with_identities else None
    tracker = FaceTracker(fuser.preprocessor.detector, FaceFollower(), embed=embed)
    frames = reader.read_frames(segment.start, segment.end, damage)
    # Frames are decoded and turned into pictures while faces are followed in those before.
    for picture in map_ahead(lambda frame: reader.see(frame, SEARCH_SIDE), frames, at_once=2):
        tracker.add(picture)
        advance(1)
    if tracker.first is None or tracker.last is None:
        raise VideoRejected(
            "damaged",
            f"{reader.path}: no frame can be decoded from {segment.start} to {segment.end} s; repair it first",
        )
    return SegmentFaces(tracker.finish(), tracker.frame, damage.number, tracker.first, tracker.last)


def join_faces(segments: Sequence[SegmentFaces]) -> list[Track]:
    """Join the tracks that go on from one segment to the next; frames count from the first one of the video."""
    offsets = np.cumsum([0, *(segment.num_frames for segment in segments)])
    tracks = [
        [replace(track, frames=track.frames + offset) for track in segment.tracks]
        for segment, offset in zip(segments, offsets, strict=False)
    ]
    ended: list[Track] = []
    going_on = tracks[0]
    for (before, after), beginning in zip(pairwise(segments), tracks[1:], strict=True):
        if is_cut(before.last, after.first):
            ended += going_on
            going_on = beginning
        else:
            left, going_on = join_across(going_on, beginning)
            ended += left
    return sorted([*ended, *going_on], key=lambda track: int(track.frames[0]))


def join_across(before: Sequence[Track], after: Sequence[Track]) -> tuple[list[Track], list[Track]]:
    """Join tracks across the seam of two segments, the nearest first; return those that end, and those that go on."""
    pairs = sorted(
        (distance_between(old.boxes[-1], new.boxes[0]), first, second)
        for first, old in enumerate(before)
        for second, new in enumerate(after)
        if 0 < new.frames[0] - old.frames[-1] <= LONGEST_LOSS + 1
    )
    joined: dict[int, int] = {}
    for apart, first, second in pairs:
        if apart < FARTHEST and first not in joined.values() and second not in joined:
            joined[second] = first
    going_on = [
        join(before[joined[number]], track) if number in joined else track for number, track in enumerate(after)
    ]
    return [track for number, track in enumerate(before) if number not in joined.values()], going_on
