"""Ask the target policy about the frames of a film before they are changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from fusionray.faces.face import Face
from fusionray.safety.target_policy import TargetPolicy
from fusionray.video.face_fusion.finding import SEARCH_SIDE
from fusionray.video.face_fusion.plan import PlannedFace
from fusionray.video.files.reader import frame_time
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance
from fusionray.video.work import SegmentScan, SegmentWorker


class CheckedWorker(SegmentWorker):
    """Lets another worker render a segment only if the policy permits its frames: the first one, and one each
    `seconds`; 0: each.

    Every segment is asked about before any of its frames is changed, and there is no film unless all are permitted.
    `check` is called before each frame, and may raise to end the work. `faces_of`: the faces that a plan changes, by
    frame; None: frames are changed whole.
    """

    def __init__(
        self,
        worker: SegmentWorker,
        policy: TargetPolicy,
        seconds: float,
        check: Callable[[], None],
        *,
        faces_of: Callable[[Any], Mapping[int, list[PlannedFace]]] | None = None,
    ) -> None:
        super().__init__(worker.task)
        self.worker = worker
        self.scans_at_once = worker.scans_at_once
        self.policy = policy
        self.seconds = Fraction(seconds)
        self.check = check
        self.faces_of = faces_of

    def scan(self, segment: Segment, advance: Advance) -> SegmentScan:
        """Let the worker scan a segment."""
        return self.worker.scan(segment, advance)

    def render(self, segment: Segment, plan: Any, path: Path, advance: Advance) -> dict[str, float]:
        """Ask about the frames of a segment, then let the worker render them.

        Raises: TargetRefused; as the worker does.
        """
        self.ask(segment, None if self.faces_of is None else self.faces_of(plan))
        return self.worker.render(segment, plan, path, advance)

    def ask(self, segment: Segment, planned: Mapping[int, list[PlannedFace]] | None) -> None:
        """Ask about the frames of a segment, upright, with the faces that are to be changed.

        Raises: TargetRefused.
        """
        following: Fraction | None = None
        sees_faces = self.policy.sees_faces and planned is not None
        for number, frame in enumerate(self.reader.read_frames(segment.start, segment.end)):
            self.check()
            faces = (planned or {}).get(number, []) if sees_faces else []
            # A classifier of faces is not asked about a frame in which nobody is changed.
            if (sees_faces and not faces) or (following is not None and frame_time(frame) < following):
                continue
            following = frame_time(frame) + self.seconds
            self.policy.check(self.reader.see(frame, SEARCH_SIDE), [describe_face(face) for face in faces])


def describe_face(planned: PlannedFace) -> Face:
    """Build a face of its five points, with the box around them and as much again on each side."""
    left, top = planned.points.min(axis=0)
    width, height = planned.points.max(axis=0) - planned.points.min(axis=0)
    box = np.array((left - width / 2, top - height / 2, 2 * width, 2 * height), np.float32)
    return Face(box, planned.points, 1.0)
