"""Tracks: one face through the frames of a video. Gaps are filled, and landmarks smoothed, from both sides of a frame.

Shape suffixes: T frames of a track, K frames of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import Face

# Frames on each side of one that smooth it: half a second in all, in which a head turns along a parabola. With four,
# the points of a rendered film shake 1.4 times as much as the true ones, with six 1.17, and lie no farther from them.
REACH = 6


@dataclass(frozen=True, eq=False)
class Track:
    """One face through consecutive frames of a video, without a cut.

    `frames` int64 [T]: numbers of frames, ascending; `landmarks` float32 [T,5,2] and `boxes` float32 [T,4] as those of
    a `Face`; `found` bool [T]: false where a gap was filled; `identity` float32 [E] of unit length, if it is known.
    """

    frames: NDArray[np.int64]
    landmarks: NDArray[np.float32]
    boxes: NDArray[np.float32]
    found: NDArray[np.bool_]
    identity: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.frames)

    @classmethod
    def of(cls, frames: Sequence[int], faces: Sequence[Face], identities: Sequence[NDArray[np.float32]] = ()) -> Track:
        """Make a track of at least one face that was found, of the frames in which it was, and identities of some."""
        mean = np.sum(identities, axis=0) if identities else None
        return cls(
            np.asarray(frames, np.int64),
            np.stack([face.landmarks for face in faces]),
            np.stack([face.box for face in faces]),
            np.ones(len(frames), bool),
            None if mean is None else to_unit(mean),
        )


def join(before: Track, after: Track) -> Track:
    """Join two tracks of one face; a long track counts more for the identity."""
    known = [(len(track), track.identity) for track in (before, after) if track.identity is not None]
    mean = np.sum([count * identity for count, identity in known], axis=0) if known else None
    return Track(
        np.concatenate([before.frames, after.frames]),
        np.concatenate([before.landmarks, after.landmarks]),
        np.concatenate([before.boxes, after.boxes]),
        np.concatenate([before.found, after.found]),
        None if mean is None else to_unit(mean),
    )


def to_unit(identity: NDArray[Any]) -> NDArray[np.float32]:
    """Scale an identity [E] to unit length."""
    return (identity / max(1e-12, float(np.linalg.norm(identity)))).astype(np.float32)


def fill_gaps(track: Track, longest: int) -> list[Track]:
    """Fill gaps of at most `longest` frames by what lies between the faces around them; end the track at longer ones.

    Without this, a video shows the original face where a search missed it, for one or two frames.
    """
    ends = np.flatnonzero(np.diff(track.frames) > longest + 1) + 1
    bounds = [0, *ends.tolist(), len(track)]
    return [fill(select(track, slice(start, end))) for start, end in pairwise(bounds)]


def fill(track: Track) -> Track:
    """Fill all gaps of a track, linearly."""
    frames = np.arange(track.frames[0], track.frames[-1] + 1)
    if len(frames) == len(track):
        return track
    after = np.clip(np.searchsorted(track.frames, frames), 1, len(track) - 1)
    before = after - 1
    share = (frames - track.frames[before]) / (track.frames[after] - track.frames[before])
    return replace(
        track,
        frames=frames,
        landmarks=mix(track.landmarks[before], track.landmarks[after], share[:, None, None]),
        boxes=mix(track.boxes[before], track.boxes[after], share[:, None]),
        found=np.isin(frames, track.frames) & np.interp(frames, track.frames, track.found).astype(bool),
    )


def mix(before: NDArray[np.float32], after: NDArray[np.float32], share: NDArray[np.float64]) -> NDArray[np.float32]:
    return (before + (after - before) * share).astype(np.float32)


def smooth(track: Track, reach: int = REACH) -> Track:
    """Replace the landmarks of each frame by a parabola through those of `reach` frames on each side; near ones count
    more.

    A filter that knows only what came before would lag behind the face. Where the track begins or ends, the parabola
    goes through the frames of one side. Tracks of three frames or fewer stay as they are.

    Source: Savitzky and Golay 1964 for fits in a sliding window; the weights are the tricube of Cleveland 1979.
    """
    count = len(track)
    if count <= 3:
        return track
    flat = track.landmarks.reshape(count, -1).astype(np.float64)
    smoothed = np.empty_like(flat)
    for place in range(count):
        low, high = max(0, place - reach), min(count, place + reach + 1)
        offset_K = (track.frames[low:high] - track.frames[place]).astype(np.float64)
        weight_K = (1 - np.abs(offset_K / (reach + 1)) ** 3) ** 1.5
        powers_K3 = np.stack([np.ones_like(offset_K), offset_K, offset_K**2], axis=1)
        fit, *_ = np.linalg.lstsq(powers_K3 * weight_K[:, None], flat[low:high] * weight_K[:, None], rcond=None)
        smoothed[place] = fit[0]
    return replace(track, landmarks=smoothed.reshape(track.landmarks.shape).astype(np.float32))


def select(track: Track, part: slice) -> Track:
    """Return some of the frames of a track."""
    return replace(
        track,
        frames=track.frames[part],
        landmarks=track.landmarks[part],
        boxes=track.boxes[part],
        found=track.found[part],
    )
