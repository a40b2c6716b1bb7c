"""Ask the target policy about the frames of a film before they are changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np

from fusionray.faces.face import Face
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.style_transfer.tiled_stylizer import TiledStylizer
from fusionray.safety.target_policy import TargetPolicy
from fusionray.video.face_fusion.finding import SEARCH_SIDE
from fusionray.video.face_fusion.fusing import FramePlan, PlannedFace
from fusionray.video.face_fusion.work import FusionTask, FusionWorker
from fusionray.video.files.reader import VideoReader, frame_time
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance
from fusionray.video.style_transfer.work import StyleTask, StyleWorker


class FrameCheck:
    """Asks the policy about a segment before any of its frames is changed: about the first frame, and one each
    `seconds`; 0: each. There is no film unless all are permitted.

    `check` is called before each frame, and may raise to end the work.
    """

    def __init__(self, policy: TargetPolicy, seconds: float, check: Callable[[], None]) -> None:
        self.policy = policy
        self.seconds = Fraction(seconds)
        self.check = check

    def ask(self, reader: VideoReader, segment: Segment, planned: Mapping[int, list[PlannedFace]] | None) -> None:
        """Ask about the frames of a segment, upright. `planned`: the faces of each frame that are to be fused; None:
        frames are changed whole.

        Raises: TargetRefused.
        """
        following: Fraction | None = None
        sees_faces = self.policy.sees_faces and planned is not None
        for number, frame in enumerate(reader.read_frames(segment.start, segment.end)):
            self.check()
            faces = (planned or {}).get(number, []) if sees_faces else []
            # A classifier of faces is not asked about a frame in which nobody is changed.
            if (sees_faces and not faces) or (following is not None and frame_time(frame) < following):
                continue
            following = frame_time(frame) + self.seconds
            self.policy.check(reader.see(frame, SEARCH_SIDE), [describe_face(face) for face in faces])


class CheckedFusionWorker(FusionWorker):
    """Fuses a segment only if the policy permits its frames."""

    def __init__(
        self, task: FusionTask, fuser: Fuser, policy: TargetPolicy, seconds: float, check: Callable[[], None]
    ) -> None:
        super().__init__(task, fuser)
        self.frames = FrameCheck(policy, seconds, check)

    def render(self, segment: Segment, plan: FramePlan, path: Path, advance: Advance) -> dict[str, float]:
        """Ask about the frames of a segment, then fuse them.

        Raises: TargetRefused; as `FusionWorker.render` does.
        """
        self.frames.ask(self.reader, segment, plan.faces)
        return super().render(segment, plan, path, advance)


class CheckedStyleWorker(StyleWorker):
    """Paints a segment only if the policy permits its frames."""

    def __init__(
        self, task: StyleTask, stylizer: TiledStylizer, policy: TargetPolicy, seconds: float, check: Callable[[], None]
    ) -> None:
        super().__init__(task, stylizer)
        self.frames = FrameCheck(policy, seconds, check)

    def render(self, segment: Segment, plan: FloatArray, path: Path, advance: Advance) -> dict[str, float]:
        """Ask about the frames of a segment, then paint them.

        Raises: TargetRefused; as `StyleWorker.render` does.
        """
        self.frames.ask(self.reader, segment, None)
        return super().render(segment, plan, path, advance)


def describe_face(planned: PlannedFace) -> Face:
    """Build a face of its five points, with the box around them and as much again on each side."""
    left, top = planned.points.min(axis=0)
    width, height = planned.points.max(axis=0) - planned.points.min(axis=0)
    box = np.array((left - width / 2, top - height / 2, 2 * width, 2 * height), np.float32)
    return Face(box, planned.points, 1.0)
