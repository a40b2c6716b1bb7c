"""The second pass over a video: fuse the planned faces of its frames, steady them over time, and paste them.

Frames go through the model in groups. A group is pasted when the next one is fused, because its last faces are steadied
by the first ones of that.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing

import cv2
import numpy as np
from av import VideoFrame
from numpy.typing import NDArray

from fusionray.data.prefetch import map_ahead
from fusionray.faces.align import (
    compose,
    estimate_alignment,
    invert_affine,
    move_origin,
    region_under,
    template_to_template,
    warp_crop,
)
from fusionray.faces.face import FloatMap, Image, Matrix
from fusionray.runtime.crop_fuser import FusedCrops
from fusionray.runtime.face_preprocessor import FaceCrops
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixel_boost import choose_factor, join_phases, repeat_sources, split_phases
from fusionray.runtime.pixels import FloatArray
from fusionray.video.face_fusion.finding import SEARCH_SIDE
from fusionray.video.face_fusion.plan import FramePlan, PlannedFace
from fusionray.video.face_fusion.steadying import FaceRegion, FusedFace, FusedGroup, steady, with_neighbours
from fusionray.video.files.description import VideoDescription
from fusionray.video.frames.planes import blend_region, read_region
from fusionray.video.frames.upright import map_to_stored
from fusionray.video.rendering import GROUP_FRAMES, NumberedFrame, group_by
from fusionray.video.stages import StageSeconds


def find_changes(before: Image, after: Image) -> FloatMap:
    """Return 1 for each pixel that differs in any channel, float32 [H,W], else 0."""
    red, green, blue = cv2.split(cv2.absdiff(before, after))
    return np.asarray(cv2.min(cv2.max(cv2.max(red, green), blue), 1), np.float32)


class FrameFuser:
    """Fuses the planned faces of the frames of a segment, in place. `sources`: encoded, by their numbers; `plan` counts
    from the segment's first frame; `steady_colours`: whether colours are steadied, too.
    """

    def __init__(
        self,
        description: VideoDescription,
        fuser: Fuser,
        sources: Sequence[FloatArray],
        plan: FramePlan,
        *,
        steady_colours: bool = False,
    ) -> None:
        self.fuser = fuser
        self.sources = sources
        self.plan = plan
        self.steady_colours = steady_colours
        to_stored = map_to_stored(
            description.width,
            description.height,
            SEARCH_SIDE,
            orientation=description.orientation,
            sample_aspect=description.sample_aspect,
        )
        self.from_stored = np.vstack([invert_affine(to_stored), [0, 0, 1]])

    def change(self, frames: Iterable[NumberedFrame], seconds: StageSeconds) -> Generator[Sequence[NumberedFrame]]:
        """Yield the frames in groups, in their order, when they are fused; the next group is fused meanwhile."""

        def fuse(group: Sequence[NumberedFrame]) -> FusedGroup:
            with seconds.measure("fuse"):
                return FusedGroup(group, self.fuse(group))

        def finish(item: tuple[FusedGroup, Sequence[FusedFace]]) -> Sequence[NumberedFrame]:
            group, around = item
            with seconds.measure("paste"):
                for face in group.faces:
                    self.paste(face, around)
            return group.frames

        with closing(map_ahead(fuse, group_by(frames, GROUP_FRAMES), at_once=1)) as fused:
            yield from map_ahead(finish, with_neighbours(fused), at_once=1)

    def fuse(self, group: Sequence[NumberedFrame]) -> list[FusedFace]:
        """Fuse the planned faces of frames in one batch."""
        cuts = [
            (number, face.track, region)
            for number, frame in group
            for face in self.plan.faces.get(number, [])
            if (region := self.cut(frame, face)) is not None
        ]
        if not cuts:
            return []
        regions = [region for _, _, region in cuts]
        size = self.fuser.preprocessor.size
        crops = [warp_crop(region.pixels, region.matrix, size * region.factor) for region in regions]
        sources = [repeat_sources(self.sources[region.source][None], region.factor) for region in regions]
        phases = [split_phases(crop[None], region.factor) for crop, region in zip(crops, regions, strict=True)]
        fused = self.fuser.crop_fuser.fuse(np.concatenate(sources), np.concatenate(phases))
        faces, stop = [], 0
        for (number, track, region), crop in zip(cuts, crops, strict=True):
            rows = slice(stop, stop + region.factor**2)
            stop = rows.stop
            joined = join_phases(FusedCrops(fused.crops[rows], fused.masks[rows]), region.factor)
            faces.append(FusedFace(number, track, region, crop, joined))
        return faces

    def paste(self, face: FusedFace, around: Sequence[FusedFace]) -> None:
        """Paste a fused face over that of its frame, steadied by those around it in time."""
        region = face.region
        height, width = region.pixels.shape[:2]
        target = FaceCrops(face.own[None], (region.matrix,), ((0, 0, width, height),), region.factor)
        fused = steady(face, around, with_colours=self.steady_colours)
        made = self.fuser.paste(region.pixels.copy(), target, fused)
        blend_region(region.frame, region.box, made.image, find_changes(region.pixels, made.image))

    def cut(self, frame: VideoFrame, face: PlannedFace) -> FaceRegion | None:
        """Read the pixels under the crop of a face; None if it lies outside of the frame."""
        preprocessor = self.fuser.preprocessor

        def find_matrix(size: int) -> Matrix:
            # Stored pixels are turned, mirrored and stretched against those in which the points are.
            return np.asarray(estimate_alignment(face.points, preprocessor.template, size) @ self.from_stored)

        factor = choose_factor([find_matrix(preprocessor.size)], self.fuser.pixel_boost)
        side = preprocessor.size * factor
        matrix = find_matrix(side)
        left, top, right, bottom = self.find_region(matrix, side, np.empty((frame.height, frame.width), bool))
        if left >= right or top >= bottom:
            return None
        box = (left, top, right - left, bottom - top)
        return FaceRegion(frame, box, read_region(frame, box), move_origin(matrix, left, top), face.source, factor)

    def find_region(self, matrix: Matrix, size: int, frame: NDArray[np.bool_]) -> tuple[int, int, int, int]:
        """Return left, top, right, bottom of a frame's pixels under a crop, and under those of restorer and parser."""
        left, top, right, bottom = region_under(matrix, size, size, frame)
        if left >= right or top >= bottom:
            return left, top, right, bottom
        restorer, parser = self.fuser.restorer, self.fuser.parser
        wider = [] if restorer is None else [(restorer.template, restorer.size)]
        if parser is not None and self.fuser.skin == "source":
            wider.append((parser.template, parser.size))
        for template, side in wider:
            between = template_to_template(self.fuser.preprocessor.template, size, template, side)
            wide = region_under(compose(between, matrix), side, side, frame)
            left, top, right, bottom = (*map(min, (left, top), wide[:2]), *map(max, (right, bottom), wide[2:]))
        return left, top, right, bottom
