"""Ask the target policy about the frames of a film before they are fused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np

from fusionray.faces.face import Face, Image
from fusionray.runtime.fuser import Fuser
from fusionray.safety.target_policy import TargetPolicy
from fusionray.video.face_fusion.finding import SEARCH_SIDE
from fusionray.video.face_fusion.fusing import FramePlan, PlannedFace
from fusionray.video.face_fusion.work import FusionTask, FusionWorker
from fusionray.video.files.reader import frame_time
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance


class CheckedWorker(FusionWorker):
    """Fuses a segment only if the policy permits its frames: the first one, and one each `seconds`; 0: each.

    Every segment is asked about before any of its frames is fused, and there is no film unless all are permitted.
    `check` is called before each frame, and may raise to end the work.
    """

    def __init__(
        self, task: FusionTask, fuser: Fuser, policy: TargetPolicy, seconds: float, check: Callable[[], None]
    ) -> None:
        super().__init__(task, fuser)
        self.policy = policy
        self.seconds = Fraction(seconds)
        self.check = check

    def render(self, segment: Segment, plan: FramePlan, path: Path, advance: Advance) -> dict[str, float]:
        """Ask about the frames of a segment, then fuse them.

        Raises: TargetRefused; as `FusionWorker.render` does.
        """
        for image, faces in self.choose_frames(segment, plan):
            self.policy.check(image, faces)
        return super().render(segment, plan, path, advance)

    def choose_frames(self, segment: Segment, plan: FramePlan) -> Iterator[tuple[Image, list[Face]]]:
        """Yield the frames of which the policy is asked, upright, with the faces that are to be fused."""
        following: Fraction | None = None
        sees_faces = self.policy.sees_faces
        for number, frame in enumerate(self.reader.read_frames(segment.start, segment.end)):
            self.check()
            planned = plan.faces.get(number, [])
            # A classifier of faces is not asked about a frame in which nobody is changed.
            if (sees_faces and not planned) or (following is not None and frame_time(frame) < following):
                continue
            following = frame_time(frame) + self.seconds
            yield self.reader.see(frame, SEARCH_SIDE), [describe_face(face) for face in planned] if sees_faces else []


def describe_face(planned: PlannedFace) -> Face:
    """Build a face of its five points, with the box around them and as much again on each side."""
    left, top = planned.points.min(axis=0)
    width, height = planned.points.max(axis=0) - planned.points.min(axis=0)
    box = np.array((left - width / 2, top - height / 2, 2 * width, 2 * height), np.float32)
    return Face(box, planned.points, 1.0)
