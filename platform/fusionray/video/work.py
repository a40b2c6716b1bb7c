"""What is done with each segment of a video, in whichever process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from fusionray.bundle.bundle import read_bundle
from fusionray.faces.detect import build_detector
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixels import FloatArray
from fusionray.video.encoders import EncoderSettings
from fusionray.video.finding import SegmentFaces, find_faces
from fusionray.video.fusing import FramePlan, fuse_segment
from fusionray.video.reader import VideoReader
from fusionray.video.segments import Segment
from fusionray.video.stages import StageSeconds

# Called with the number of frames that were done.
Advance = Callable[[int], object]


@dataclass(frozen=True, eq=False)
class VideoTask:
    """What is made of a video, in a form that other machines get. `sources` are encoded; `encoder`: how it is encoded.

    `suffix`: that of the result, which chooses its container; `bundle`: its folder, or where the registry has it;
    `with_identities`: whether people are told apart.
    """

    target: Path
    suffix: str
    bundle: str
    tracking_uri: str | None
    sources: Sequence[FloatArray]
    with_identities: bool
    encoder: EncoderSettings = field(default_factory=EncoderSettings)


class SegmentWorker:
    """Finds and fuses the faces of segments, one after another; it opens video and model when it needs them."""

    def __init__(self, task: VideoTask, fuser: Fuser | None = None) -> None:
        self.task = task
        if fuser is not None:
            self.fuser = fuser

    @cached_property
    def reader(self) -> VideoReader:
        """Open the video."""
        return VideoReader(self.task.target)

    @cached_property
    def fuser(self) -> Fuser:
        """Load the models."""
        return Fuser(read_bundle(self.task.bundle, self.task.tracking_uri), build_detector("default"))

    def find(self, segment: Segment, advance: Advance) -> SegmentFaces:
        """Find the faces of a segment."""
        return find_faces(
            self.reader, segment, self.fuser, lambda: advance(1), with_identities=self.task.with_identities
        )

    def fuse(self, segment: Segment, plan: FramePlan, path: Path, advance: Advance) -> StageSeconds:
        """Write the fused frames of a segment to `path`."""
        return fuse_segment(
            self.reader,
            segment,
            plan,
            self.fuser,
            self.task.sources,
            path=path,
            settings=self.task.encoder,
            progress=lambda: advance(1),
        )


class Workers(Protocol):
    """Those who work on segments; answers come in any order."""

    def find(self, segments: Sequence[Segment], advance: Advance) -> Iterator[tuple[Segment, SegmentFaces]]:
        """Find the faces of segments."""
        ...

    def fuse(
        self, parts: Sequence[tuple[Segment, FramePlan]], path_of: Callable[[Segment], Path], advance: Advance
    ) -> Iterator[StageSeconds]:
        """Write the fused frames of segments, each to its path, complete or not at all."""
        ...


class LocalWorkers:
    """One worker, in this process."""

    def __init__(self, worker: SegmentWorker) -> None:
        self.worker = worker

    def find(self, segments: Sequence[Segment], advance: Advance) -> Iterator[tuple[Segment, SegmentFaces]]:
        """Find the faces of segments."""
        return ((segment, self.worker.find(segment, advance)) for segment in segments)

    def fuse(
        self, parts: Sequence[tuple[Segment, FramePlan]], path_of: Callable[[Segment], Path], advance: Advance
    ) -> Iterator[StageSeconds]:
        """Write the fused frames of segments."""
        return (self.worker.fuse(segment, plan, path_of(segment), advance) for segment, plan in parts)
