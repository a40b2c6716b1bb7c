"""The plan of the second pass over a video: which faces of which frames are fused, and with which sources.

Tracks are smoothed from both sides and gaps are filled, so that no frame flips back to the original face. Only points
are kept of the first pass: memory does not grow with the frames.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusionray.faces.face import Points
from fusionray.video.face_fusion.tracking import LONGEST_LOSS
from fusionray.video.face_fusion.tracks import Track, fill_gaps, smooth


@dataclass(frozen=True, eq=False)
class PlannedFace:
    """A face to fuse: its five points, in pixels of the searched pictures, the number of its source and of its track.

    A track whose gap is too long has another number behind it. `found`: false where a gap was filled.
    """

    points: Points
    source: int
    track: int = 0
    found: bool = True


@dataclass(frozen=True, eq=False)
class FramePlan:
    """The faces to fuse, by the number of the frame."""

    faces: Mapping[int, list[PlannedFace]] = field(default_factory=dict)

    @classmethod
    def of(cls, tracks: Sequence[Track], sources: Mapping[int, int], longest_gap: int = LONGEST_LOSS) -> FramePlan:
        """Fill the gaps of tracks, and smooth them. `sources`: the number of the source by that of the track."""
        parts = [
            (smooth(part), source)
            for number, source in sorted(sources.items())
            for part in fill_gaps(tracks[number], longest_gap)
        ]
        faces: dict[int, list[PlannedFace]] = defaultdict(list)
        for number, (part, source) in enumerate(parts):
            for frame, points, found in zip(part.frames.tolist(), part.landmarks, part.found.tolist(), strict=True):
                faces[frame].append(PlannedFace(points, source, number, found))
        return cls(dict(faces))

    def part(self, first: int, count: int) -> FramePlan:
        """Return the plan of some frames, which count from the first of them."""
        frames = (frame for frame in range(first, first + count) if frame in self.faces)
        return FramePlan({frame - first: self.faces[frame] for frame in frames})

    @property
    def num_faces(self) -> int:
        """Count the faces of all frames."""
        return sum(map(len, self.faces.values()))
