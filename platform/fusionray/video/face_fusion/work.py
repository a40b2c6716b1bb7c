"""The work of `fuse-video` on a video: find its faces, choose, fuse."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fusionray.bundle.bundle import Bundle, hash_file, read_bundle
from fusionray.environment import resolve_location
from fusionray.errors import NoFaceFound
from fusionray.faces.blending.skin import Skin
from fusionray.faces.detectors.factory import DetectorPool
from fusionray.hardware.device import count_cpus
from fusionray.runtime.config import PixelBoost, RuntimeConfig
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.restorer import RestorerConfig, open_restorer
from fusionray.video.face_fusion.finding import SegmentFaces, find_faces, join_faces
from fusionray.video.face_fusion.fusing import FrameFuser
from fusionray.video.face_fusion.plan import FramePlan
from fusionray.video.face_fusion.tracks import Track
from fusionray.video.rendering import render_segment
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance, StageSeconds
from fusionray.video.unchanged import copy_segment
from fusionray.video.work import SegmentWorker, VideoTask

# Segments whose faces are found at the same time in one process; each keeps a dozen frames in memory. A face is
# followed from frame to frame, which keeps one CPU busy.
MOST_SEARCHES = 8


@dataclass(frozen=True, eq=False)
class FusionTask(VideoTask):
    """`sources` are encoded; `with_identities`: whether people are told apart; `copy_unchanged`: whether segments
    without a face to fuse are copied if they can be; `restorer`: what sharpens fused faces; `skin`: whose they have, by
    default as the bundle says; `pixel_boost`: how many times the model's size they have at most; `steady_colours`:
    whether their colours are averaged over some frames, as their masks are.
    """

    sources: Sequence[FloatArray]
    with_identities: bool
    copy_unchanged: bool = field(default=False, kw_only=True)
    restorer: RestorerConfig = field(default_factory=RestorerConfig, kw_only=True)
    skin: Skin | None = field(default=None, kw_only=True)
    pixel_boost: PixelBoost = field(default=1, kw_only=True)
    steady_colours: bool = field(default=False, kw_only=True)

    def open_worker(self) -> FusionWorker:
        """Make a worker for this process; it loads the models when it needs them."""
        return FusionWorker(self)


class FusionWorker(SegmentWorker):
    """Finds and fuses the faces of segments."""

    task: FusionTask

    def __init__(self, task: FusionTask, fuser: Fuser | None = None) -> None:
        super().__init__(task)
        self.scans_at_once = count_searches(task.threads)
        if fuser is not None:
            self.fuser = fuser

    @cached_property
    def fuser(self) -> Fuser:
        """Load the models."""
        bundle = read_bundle(self.task.bundle, self.task.tracking_uri)
        task = self.task
        return open_fuser(bundle, task.threads, task.restorer, task.skin, task.pixel_boost)

    def scan(self, segment: Segment, advance: Advance) -> SegmentFaces:
        """Find the faces of a segment."""
        return find_faces(self.reader, segment, self.fuser, advance, with_identities=self.task.with_identities)

    def render(self, segment: Segment, plan: FramePlan, path: Path, advance: Advance) -> dict[str, float]:
        """Write the fused frames of a segment to `path`, or copy it if nothing in it changes."""
        if self.task.copy_unchanged and not plan.faces and self.frame_mark is None:
            seconds = StageSeconds()
            with seconds.measure("copy"):
                is_copied = copy_segment(self.reader, segment, path, self.task.encoder)
            if is_copied:
                advance(segment.num_frames)
                return seconds.seconds
        task = self.task
        fuser = FrameFuser(self.reader.description, self.fuser, task.sources, plan, steady_colours=task.steady_colours)
        return render_segment(
            self.reader,
            segment,
            fuser.change,
            path=path,
            settings=self.task.encoder,
            mark=self.frame_mark,
            advance=advance,
        )


@dataclass(frozen=True, eq=False)
class FusionWork:
    """Fusing the faces of a video: `choose` gives the number of the source by that of the track, `settings` is what it
    depends on, as JSON; `model`: the hash of the bundle.
    """

    task: FusionTask
    choose: Callable[[list[Track]], Mapping[int, int]]
    settings: Mapping[str, Any]
    model: str

    passes = ("find faces", "fuse")

    @property
    def scan_settings(self) -> Mapping[str, Any]:
        """Return the part of the bundle that tells people apart."""
        return {"bundle": self.model if self.task.with_identities else None}

    @property
    def render_settings(self) -> Mapping[str, Any]:
        """Return what the frames depend on."""
        return {
            **self.settings,
            "sources": [hashlib.sha256(source.tobytes()).hexdigest() for source in self.task.sources],
            "copy_unchanged": self.task.copy_unchanged,
            "restorer": describe_restorer(self.task.restorer),
            "skin": self.task.skin,
            "pixel_boost": self.task.pixel_boost,
            "steady_colours": self.task.steady_colours,
        }

    def decode(self, data: bytes) -> SegmentFaces:
        """Decode the faces of a segment."""
        return SegmentFaces.decode(data)

    def plan(self, scans: Sequence[SegmentFaces]) -> FramePlan:
        """Join the tracks of all segments, and choose.

        Raises: NoFaceFound; what `choose` raises.
        """
        tracks = join_faces(scans)
        if not tracks:
            raise NoFaceFound(f"{self.task.target}: no face found in the video; nothing was written")
        return FramePlan.of(tracks, self.choose(tracks))


def open_fuser(
    bundle: Bundle,
    threads: int | None = None,
    restorer: RestorerConfig | None = None,
    skin: Skin | None = None,
    pixel_boost: PixelBoost = 1,
) -> Fuser:
    """Load the models; `threads` of each, None for all CPUs. Detectors are there for all searches at the same time."""
    detectors, runtime = DetectorPool("default", count_searches(threads)), RuntimeConfig(threads=threads)
    opened = open_restorer(restorer or RestorerConfig(), runtime)
    return Fuser(bundle, detectors, runtime, restorer=opened, skin=skin, pixel_boost=pixel_boost)


def describe_restorer(settings: RestorerConfig) -> dict[str, Any] | None:
    """Describe a restorer by its settings and the hash of its file; None if there is none."""
    if settings.model is None:
        return None
    return {**settings.model_dump(), "sha256": hash_file(Path(resolve_location(settings.model)))}


def count_searches(threads: int | None) -> int:
    """Return the number of segments whose faces one process finds at the same time."""
    return min(threads or count_cpus(), MOST_SEARCHES)
