"""What is done with each segment of a video, in whichever process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from fusionray.bundle.bundle import Bundle, read_bundle
from fusionray.data.prefetch import map_ahead
from fusionray.faces.detect import DetectorPool
from fusionray.hardware.device import count_cpus
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixels import FloatArray
from fusionray.safety.mark import Mark, MarkConfig
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.reader import VideoReader
from fusionray.video.finding import SegmentFaces, find_faces
from fusionray.video.fusing import FramePlan, fuse_segment
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance, StageSeconds
from fusionray.video.unchanged import copy_segment

# Segments whose faces are found at the same time in one process; each keeps a dozen frames in memory.
MOST_SEARCHES = 8

# Segments that are fused at the same time in one process: while the encoder of one looks ahead, or ends, another fills
# the CPUs. Each keeps some dozens of frames in memory.
FUSED_AT_ONCE = 2


@dataclass(frozen=True, eq=False)
class VideoTask:
    """What is made of a video, in a form that other machines get. `sources` are encoded; `encoder`: how it is encoded;
    `mark`: what is drawn on every frame; `copy_unchanged`: whether segments without a face to fuse are copied if they
    can be; `threads` of the models, None for all CPUs; `leave_out`: kinds of streams that are not copied.

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
    mark: MarkConfig = field(default_factory=MarkConfig)
    copy_unchanged: bool = False
    threads: int | None = None
    leave_out: tuple[str, ...] = ()


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
        return open_fuser(read_bundle(self.task.bundle, self.task.tracking_uri), self.task.threads)

    def find(self, segment: Segment, advance: Advance) -> SegmentFaces:
        """Find the faces of a segment."""
        return find_faces(self.reader, segment, self.fuser, advance, with_identities=self.task.with_identities)

    def fuse(self, segment: Segment, plan: FramePlan, path: Path, advance: Advance) -> dict[str, float]:
        """Write the fused frames of a segment to `path`, or copy it if nothing in it changes."""
        if self.task.copy_unchanged and not plan.faces and not self.task.mark.enabled:
            seconds = StageSeconds()
            with seconds.measure("copy"):
                is_copied = copy_segment(self.reader, segment, path, self.task.encoder)
            if is_copied:
                advance(segment.num_frames)
                return seconds.seconds
        return fuse_segment(
            self.reader,
            segment,
            plan,
            self.fuser,
            self.task.sources,
            path=path,
            settings=self.task.encoder,
            mark=Mark(self.task.mark) if self.task.mark.enabled else None,
            advance=advance,
        )


def open_fuser(bundle: Bundle, threads: int | None = None) -> Fuser:
    """Load the models; `threads` of each, None for all CPUs. Detectors are there for all searches at the same time."""
    detectors = DetectorPool("default", count_searches(threads))
    return Fuser(bundle, detectors, RuntimeConfig(threads=threads))


def count_searches(threads: int | None) -> int:
    """Return the number of segments whose faces one process finds at the same time."""
    return min(threads or count_cpus(), MOST_SEARCHES)


class Workers(Protocol):
    """Those who work on segments; answers come in any order."""

    def find(self, segments: Sequence[Segment], advance: Advance) -> Iterator[tuple[Segment, SegmentFaces]]:
        """Find the faces of segments."""
        ...

    def fuse(
        self, parts: Sequence[tuple[Segment, FramePlan]], path_of: Callable[[Segment], Path], advance: Advance
    ) -> Iterator[tuple[Segment, dict[str, float]]]:
        """Write the fused frames of segments, each to its path, complete or not at all."""
        ...


class LocalWorkers:
    """One worker, in this process. Faces of as many segments as there are CPUs (or `threads`) are found at the same
    time: a face is followed from frame to frame, which keeps one CPU busy. If one segment fails, or the caller is
    interrupted, the work on the others ends within a frame or two.
    """

    def __init__(self, worker: SegmentWorker, threads: int | None = None) -> None:
        self.worker = worker
        self.searches = count_searches(threads)

    def find(self, segments: Sequence[Segment], advance: Advance) -> Generator[tuple[Segment, SegmentFaces]]:
        """Find the faces of segments."""
        stop = threading.Event()

        def work(segment: Segment) -> tuple[Segment, SegmentFaces]:
            return segment, self.worker.find(segment, stop_by(stop, advance))

        return map_ahead(work, segments, at_once=self.searches, leave=stop.set)

    def fuse(
        self, parts: Sequence[tuple[Segment, FramePlan]], path_of: Callable[[Segment], Path], advance: Advance
    ) -> Generator[tuple[Segment, dict[str, float]]]:
        """Write the fused frames of segments."""
        stop = threading.Event()

        def work(part: tuple[Segment, FramePlan]) -> tuple[Segment, dict[str, float]]:
            segment, plan = part
            return segment, self.worker.fuse(segment, plan, path_of(segment), stop_by(stop, advance))

        return map_ahead(work, parts, at_once=FUSED_AT_ONCE, leave=stop.set)


def stop_by(stop: threading.Event, advance: Advance) -> Advance:
    """Return an `advance` that ends the work on a segment once the event is set."""

    def advance_or_stop(count: int) -> None:
        if stop.is_set():
            raise CancelledError
        advance(count)

    return advance_or_stop
