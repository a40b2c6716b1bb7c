"""Find the faces of a video frame by frame, and which of them are the same: a search now and then, following between.

A search costs as much as following thirty faces, so it runs every few frames, at cuts, and while a face is lost. Who
came since the last search is followed backwards through the frames between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import Detector, Face, Image
from fusionray.video.cuts import is_cut, summarise
from fusionray.video.face_fusion.tracks import Track

# Frames between two searches: half a second of most videos, after which a newcomer is seen.
SEARCH_EVERY = 12
# Searches in a row that may miss a followed face before it counts as none.
MOST_MISSES = 2
# Frames after which a lost face that comes back begins a new track.
LONGEST_LOSS = 12
# Two boxes that share more than this (intersection over union) show one face.
SAME_FACE = 0.3
# A lost face is at most so many of its widths away from where it was.
FARTHEST = 1.0
# Computes the identity of a face of a picture, float32 [E] of unit length.
Embed = Callable[[Image, Face], NDArray[np.float32]]


class Follower(Protocol):
    """Finds a face of the frame before again; see `faces.detectors.following.FaceFollower`."""

    def follow(self, image: Image, face: Face) -> Face | None:
        """Find a face in the next frame; None if it is not there any more."""
        ...


@dataclass(eq=False)
class OpenTrack:
    """A track that may go on. `confirmed`: how many of its faces came before, or with, the last of the `sightings`, the
    searches that saw it; `misses`: searches since then. `identities` [E] each: some of its faces, to know the person.
    """

    frames: list[int] = field(default_factory=list)
    faces: list[Face] = field(default_factory=list)
    confirmed: int = 0
    sightings: int = 0
    misses: int = 0
    is_lost: bool = False
    identities: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, frame: int, face: Face) -> None:
        """Add the face of a frame."""
        self.frames.append(frame)
        self.faces.append(face)
        self.is_lost = False

    def confirm(self) -> None:
        """Note that a search saw the newest face."""
        self.confirmed, self.misses, self.sightings = len(self.faces), 0, self.sightings + 1

    @property
    def wants_identity(self) -> bool:
        """Tell whether to embed the newest face: one, two, four, eight ... searches saw it, which spreads over time."""
        return not self.misses and self.sightings & (self.sightings - 1) == 0

    def close(self) -> Track:
        """Return the track; what searches did not see at its end was no face."""
        kept = self.confirmed if self.misses else len(self.faces)
        return Track.of(self.frames[:kept], self.faces[:kept], self.identities)


class FaceTracker:
    """Takes the frames of a video in their order, and gives tracks.

    Without a `follower`, every frame is searched: only faces of the default detector can be followed. Without `embed`,
    tracks have no identities.
    """

    def __init__(
        self,
        detector: Detector,
        follower: Follower | None,
        *,
        embed: Embed | None = None,
        search_every: int = SEARCH_EVERY,
    ) -> None:
        self.detector = detector
        self.follower = follower
        self.embed = embed
        self.search_every = search_every if follower is not None else 1
        # Summaries of the first frame and of the newest one.
        self.first: NDArray[np.int16] | None = None
        self.last: NDArray[np.int16] | None = None
        self.open: list[OpenTrack] = []
        self.ended: list[Track] = []
        # The frames since the last search, or cut.
        self.recent: deque[Image] = deque(maxlen=self.search_every)
        self.frame = 0
        self.num_searches = 0

    def add(self, image: Image) -> None:
        """Take the next frame, uint8 RGB HWC, which is kept for some frames."""
        summary = summarise(image)
        begins = self.last is None or is_cut(self.last, summary)
        self.first, self.last = summary if self.first is None else self.first, summary
        if begins:
            self.end(self.open)
            self.recent.clear()
        lost = self.follow(image)
        if begins or lost or len(self.recent) + 1 >= self.search_every:
            self.search(image)
            self.recent.clear()
        else:
            self.recent.append(image)
        gone = [track for track in self.open if self.frame - track.frames[-1] > LONGEST_LOSS]
        self.end([*gone, *(track for track in self.open if track.misses >= MOST_MISSES)])
        self.frame += 1

    def finish(self) -> list[Track]:
        """Search the last frame, and return all tracks, in the order in which they begin."""
        if self.recent:
            self.frame -= 1
            self.search(self.recent.pop())
            self.frame += 1
        self.end(self.open)
        return sorted(self.ended, key=lambda track: int(track.frames[0]))

    def end(self, over: Sequence[OpenTrack]) -> None:
        """End open tracks."""
        self.ended += [track.close() for track in self.open if track in over]
        self.open = [track for track in self.open if track not in over]

    def follow(self, image: Image) -> bool:
        """Follow the faces of the frame before; return whether one of them is lost."""
        if self.follower is None:
            return False
        for track in self.open:
            if track.is_lost:
                continue
            face = self.follower.follow(image, track.faces[-1])
            if face is None or any(
                share_of(face, other.faces[-1]) > SAME_FACE
                for other in self.open
                if other is not track and other.frames[-1] == self.frame
            ):
                track.is_lost = True
            else:
                track.add(self.frame, face)
        return any(track.is_lost for track in self.open)

    def search(self, image: Image) -> None:
        """Search the frame: confirm what was followed, find again what was lost, and begin tracks of new faces."""
        self.num_searches += 1
        found = self.detector.detect(image)
        for track in [track for track in self.open if track.frames[-1] == self.frame]:
            same = [face for face in found if share_of(face, track.faces[-1]) > SAME_FACE]
            found = [face for face in found if all(face is not each for each in same)]
            if same:
                track.confirm()
            else:
                track.misses += 1
        for track in sorted(self.open, key=lambda track: -track.frames[-1]):
            if track.frames[-1] < self.frame and found:
                nearest = min(found, key=lambda face: distance_between(face.box, track.faces[-1].box))
                if distance_between(nearest.box, track.faces[-1].box) < FARTHEST:
                    track.add(self.frame, nearest)
                    track.confirm()
                    found = [face for face in found if face is not nearest]
        for face in found:
            before = self.follow_backwards(face)
            first = self.frame - len(before)
            self.open.append(OpenTrack([*range(first, self.frame + 1)], [*before, face]))
            self.open[-1].confirm()
        for track in self.open:
            if self.embed is not None and track.frames[-1] == self.frame and track.wants_identity:
                track.identities.append(self.embed(image, track.faces[-1]))

    def follow_backwards(self, face: Face) -> list[Face]:
        """Follow a new face through the frames since the last search, the newest first; return it in their order."""
        before: list[Face] = []
        if self.follower is not None:
            for image in reversed(self.recent):
                found = self.follower.follow(image, before[-1] if before else face)
                if found is None:
                    break
                before.append(found)
        return before[::-1]


def share_of(face: Face, other: Face) -> float:
    """Return the intersection of two boxes over their union."""
    low = np.maximum(face.box[:2], other.box[:2])
    high = np.minimum(face.box[:2] + face.box[2:], other.box[:2] + other.box[2:])
    shared = float(np.prod(np.maximum(high - low, 0.0)))
    return shared / max(1e-6, face.area + other.area - shared)


def distance_between(box: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return how far the middles of two boxes [4] are apart, in widths of the larger one."""
    middles = box[:2] + box[2:] / 2 - other[:2] - other[2:] / 2
    return float(np.linalg.norm(middles)) / float(max(box[2], other[2]))
