"""The work of `stylize` on a video: measure its frames, smooth what was measured, paint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fusionray.bands.array import ArrayBands
from fusionray.bundle.bundle import read_bundle
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.style_transfer.tiled_stylizer import TiledStylizer
from fusionray.video.frames.planes import blend_region
from fusionray.video.rendering import NumberedFrame, change_groups, render_segment
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance
from fusionray.video.style_transfer.measuring import SegmentStatistics, measure_segment, read_whole
from fusionray.video.style_transfer.plan import StylePlan
from fusionray.video.work import SegmentWorker, VideoTask

# Frames that a thread paints one after another: each is a picture in memory.
PAINTED_TOGETHER = 2


@dataclass(frozen=True, eq=False)
class StyleTask(VideoTask):
    """`style`: encoded, of one picture or mixed of several; `strength` as in `Stylizer.stylize`."""

    style: FloatArray
    strength: float

    def open_worker(self) -> StyleWorker:
        """Make a worker for this process; it loads the models when it needs them."""
        return StyleWorker(self)


class StyleWorker(SegmentWorker):
    """Measures and paints the frames of segments, in tiles: memory does not grow with the frames' size."""

    task: StyleTask
    # While one is decoded, another is measured.
    scans_at_once = 2

    def __init__(self, task: StyleTask, stylizer: TiledStylizer | None = None) -> None:
        super().__init__(task)
        if stylizer is not None:
            self.stylizer = stylizer

    @cached_property
    def stylizer(self) -> TiledStylizer:
        """Load the models."""
        return TiledStylizer(
            read_bundle(self.task.bundle, self.task.tracking_uri), RuntimeConfig(threads=self.task.threads)
        )

    def scan(self, segment: Segment, advance: Advance) -> SegmentStatistics:
        """Measure a segment."""
        task = self.task
        return measure_segment(self.reader, segment, self.stylizer, task.style, strength=task.strength, advance=advance)

    def render(self, segment: Segment, plan: FloatArray, path: Path, advance: Advance) -> dict[str, float]:
        """Write the painted frames of a segment to `path`; `plan` [T,M]: what was measured of each of its frames."""

        def paint(group: Sequence[NumberedFrame]) -> None:
            for number, frame in group:
                # A frame with a fault may be decoded in one pass and not in the other.
                measured = plan[min(number, len(plan) - 1)]
                content = ArrayBands(read_whole(frame))
                tiles = self.stylizer.paint_tiles(content, measured)
                painted = np.concatenate(list(self.stylizer.join_tiles(content.width, tiles)))
                everywhere = np.ones(painted.shape[:2], np.float32)
                blend_region(frame, (0, 0, frame.width, frame.height), painted, everywhere)

        return render_segment(
            self.reader,
            segment,
            change_groups(paint, "paint", PAINTED_TOGETHER),
            path=path,
            settings=self.task.encoder,
            mark=self.frame_mark,
            advance=advance,
        )


@dataclass(frozen=True, eq=False)
class StyleWork:
    """Painting a video. `model`: the hash of the bundle."""

    task: StyleTask
    model: str

    passes = ("measure frames", "paint")

    @property
    def scan_settings(self) -> Mapping[str, Any]:
        """Return what the measurements depend on."""
        style = hashlib.sha256(self.task.style.tobytes()).hexdigest()
        return {"bundle": self.model, "style": style, "strength": self.task.strength}

    @property
    def render_settings(self) -> Mapping[str, Any]:
        """Return what the frames depend on beside that: nothing."""
        return {}

    def decode(self, data: bytes) -> SegmentStatistics:
        """Decode the measurements of a segment."""
        return SegmentStatistics.decode(data)

    def plan(self, scans: Sequence[SegmentStatistics]) -> StylePlan:
        """Interpolate and smooth what was measured."""
        return StylePlan(scans)
