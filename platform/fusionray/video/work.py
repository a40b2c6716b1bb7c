"""What is done with each segment of a video, in whichever process: two passes, and a plan of the whole between them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from fusionray.data.prefetch import map_ahead
from fusionray.safety.mark import Mark, MarkConfig
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.reader import VideoReader
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance

# Segments that are rendered at the same time in one process: while the encoder of one looks ahead, or ends, another
# fills the CPUs. Each keeps some dozens of frames in memory.
RENDERED_AT_ONCE = 2


class SegmentScan(Protocol):
    """What the first pass over a segment found. `num_damaged`: frames and packets with faults."""

    @property
    def num_frames(self) -> int: ...

    @property
    def num_damaged(self) -> int: ...

    def encode(self) -> bytes:
        """Encode as a file."""
        ...


class VideoPlan(Protocol):
    """What the second pass does, of the scans of all segments."""

    def part(self, first: int, count: int) -> Any:
        """Return the plan of some frames, which count from the first of them."""
        ...


@dataclass(frozen=True, eq=False)
class VideoTask(ABC):
    """What is made of a video, in a form that other machines get.

    `suffix`: that of the result, which chooses its container; `bundle`: its folder, or where the registry has it;
    `encoder`: how the result is encoded; `mark`: what is drawn on every frame; `threads` of the models, None for all
    CPUs; `leave_out`: kinds of streams that are not copied.
    """

    target: Path
    suffix: str
    bundle: str
    tracking_uri: str | None
    _: KW_ONLY
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    mark: MarkConfig = field(default_factory=MarkConfig)
    threads: int | None = None
    leave_out: tuple[str, ...] = ()

    @abstractmethod
    def open_worker(self) -> SegmentWorker:
        """Make a worker for this process; it loads the models when it needs them."""


class VideoWork(Protocol):
    """A kind of work on a video: its task, the names of its two passes, and the plan between them."""

    @property
    def task(self) -> VideoTask: ...

    @property
    def passes(self) -> tuple[str, str]:
        """Return what is shown as the names of both passes."""
        ...

    @property
    def scan_settings(self) -> Mapping[str, Any]:
        """Return what scans depend on, beside the video, as JSON: a run with other settings scans anew."""
        ...

    @property
    def render_settings(self) -> Mapping[str, Any]:
        """Return what the frames depend on, beside scans, bundle, mark and encoder, as JSON."""
        ...

    def decode(self, data: bytes) -> Any:
        """Decode what `SegmentScan.encode` gave."""
        ...

    def plan(self, scans: Sequence[Any]) -> VideoPlan:
        """Plan the second pass.

        Raises: NoFaceFound if there is nothing to do.
        """
        ...


class SegmentWorker(ABC):
    """Works on segments of a video; it opens video and models when it needs them.

    `scans_at_once`: segments that one process scans at the same time.
    """

    scans_at_once = 1

    def __init__(self, task: VideoTask) -> None:
        self.task = task
        self.frame_mark = Mark(task.mark) if task.mark.enabled else None

    @cached_property
    def reader(self) -> VideoReader:
        """Open the video."""
        return VideoReader(self.task.target)

    @abstractmethod
    def scan(self, segment: Segment, advance: Advance) -> SegmentScan:
        """Do the first pass over a segment."""

    @abstractmethod
    def render(self, segment: Segment, plan: Any, path: Path, advance: Advance) -> dict[str, float]:
        """Write the new frames of a segment to `path`; return the seconds of each stage."""


class Workers(Protocol):
    """Those who work on segments; answers come in any order."""

    def scan(self, segments: Sequence[Segment], advance: Advance) -> Iterator[tuple[Segment, SegmentScan]]:
        """Scan segments."""
        ...

    def render(
        self, parts: Sequence[tuple[Segment, Any]], path_of: Callable[[Segment], Path], advance: Advance
    ) -> Iterator[tuple[Segment, dict[str, float]]]:
        """Write the new frames of segments, each by its part of the plan to its path, complete or not at all."""
        ...


class LocalWorkers:
    """One worker, in this process, which works on some segments at the same time. If one segment fails, or the caller
    is interrupted, the work on the others ends within a frame or two.
    """

    def __init__(self, worker: SegmentWorker) -> None:
        self.worker = worker

    def scan(self, segments: Sequence[Segment], advance: Advance) -> Generator[tuple[Segment, SegmentScan]]:
        """Scan segments."""
        stop = threading.Event()

        def work(segment: Segment) -> tuple[Segment, SegmentScan]:
            return segment, self.worker.scan(segment, stop_by(stop, advance))

        return map_ahead(work, segments, at_once=self.worker.scans_at_once, leave=stop.set)

    def render(
        self, parts: Sequence[tuple[Segment, Any]], path_of: Callable[[Segment], Path], advance: Advance
    ) -> Generator[tuple[Segment, dict[str, float]]]:
        """Write the new frames of segments."""
        stop = threading.Event()

        def work(part: tuple[Segment, Any]) -> tuple[Segment, dict[str, float]]:
            segment, plan = part
            return segment, self.worker.render(segment, plan, path_of(segment), stop_by(stop, advance))

        return map_ahead(work, parts, at_once=RENDERED_AT_ONCE, leave=stop.set)


def stop_by(stop: threading.Event, advance: Advance) -> Advance:
    """Return an `advance` that ends the work on a segment once the event is set."""

    def advance_or_stop(count: int) -> None:
        if stop.is_set():
            raise CancelledError
        advance(count)

    return advance_or_stop
