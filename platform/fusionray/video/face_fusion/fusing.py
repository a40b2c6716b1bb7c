"""The second pass over a video: fuse the faces of some frames, and paste them into these.

Between the passes, tracks are smoothed from both sides and gaps are filled, so that no frame flips back to the original
face. Only points are kept of the first pass: memory does not grow with the frames.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
from av import VideoFrame
from numpy.typing import NDArray

from fusionray.faces.align import (
    compose,
    estimate_alignment,
    invert_affine,
    move_origin,
    region_under,
    template_to_template,
    warp_crop,
)
from fusionray.faces.face import FloatMap, Image, Matrix, Points
from fusionray.runtime.config import PixelBoost
from fusionray.runtime.crop_fuser import FusedCrops
from fusionray.runtime.face_preprocessor import FaceCrops
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixel_boost import choose_factor, join_phases, repeat_sources, split_phases
from fusionray.runtime.pixels import FloatArray
from fusionray.video.face_fusion.finding import SEARCH_SIDE
from fusionray.video.face_fusion.tracking import LONGEST_LOSS
from fusionray.video.face_fusion.tracks import Track, fill_gaps, smooth
from fusionray.video.files.description import VideoDescription
from fusionray.video.frames.planes import blend_region, read_region
from fusionray.video.frames.region import Box
from fusionray.video.frames.upright import map_to_stored


@dataclass(frozen=True, eq=False)
class PlannedFace:
    """A face to fuse: its five points, in pixels of the searched pictures, and the number of its source.

    `found`: false where a gap was filled.
    """

    points: Points
    source: int
    found: bool = True


@dataclass(frozen=True, eq=False)
class FramePlan:
    """The faces to fuse, by the number of the frame."""

    faces: Mapping[int, list[PlannedFace]] = field(default_factory=dict)

    @classmethod
    def of(cls, tracks: Sequence[Track], sources: Mapping[int, int], longest_gap: int = LONGEST_LOSS) -> FramePlan:
        """Fill the gaps of tracks, and smooth them. `sources`: the number of the source by that of the track."""
        faces: dict[int, list[PlannedFace]] = defaultdict(list)
        for number, source in sorted(sources.items()):
            for part in map(smooth, fill_gaps(tracks[number], longest_gap)):
                for frame, points, found in zip(part.frames.tolist(), part.landmarks, part.found.tolist(), strict=True):
                    faces[frame].append(PlannedFace(points, source, found))
        return cls(dict(faces))

    def part(self, first: int, count: int) -> FramePlan:
        """Return the plan of some frames, which count from the first of them."""
        frames = (frame for frame in range(first, first + count) if frame in self.faces)
        return FramePlan({frame - first: self.faces[frame] for frame in frames})

    @property
    def num_faces(self) -> int:
        """Count the faces of all frames."""
        return sum(map(len, self.faces.values()))


@dataclass(frozen=True, eq=False)
class FaceRegion:
    """A face of a frame: the box of its pixels, these pixels, the map from them to the crop, the number of its source,
    and how many times the model's size the crop has.
    """

    frame: VideoFrame
    box: Box
    pixels: Image
    matrix: Matrix
    source: int
    factor: PixelBoost


def find_changes(before: Image, after: Image) -> FloatMap:
    """Return 1 for each pixel that differs in any channel, float32 [H,W], else 0."""
    red, green, blue = cv2.split(cv2.absdiff(before, after))
    return np.asarray(cv2.min(cv2.max(cv2.max(red, green), blue), 1), np.float32)


class GroupFuser:
    """Fuses the faces of some frames of a video in one batch, in place. `sources`: encoded, by their numbers."""

    def __init__(self, description: VideoDescription, fuser: Fuser, sources: Sequence[FloatArray]) -> None:
        self.fuser = fuser
        self.sources = sources
        to_stored = map_to_stored(
            description.width,
            description.height,
            SEARCH_SIDE,
            orientation=description.orientation,
            sample_aspect=description.sample_aspect,
        )
        self.from_stored = np.vstack([invert_affine(to_stored), [0, 0, 1]])

    def fuse(self, group: Sequence[tuple[VideoFrame, list[PlannedFace]]]) -> None:
        """Fuse the planned faces of frames."""
        regions = [region for frame, faces in group for face in faces if (region := self.cut(frame, face)) is not None]
        if not regions:
            return
        size = self.fuser.preprocessor.size
        crops = [warp_crop(region.pixels, region.matrix, size * region.factor) for region in regions]
        sources = [repeat_sources(self.sources[region.source][None], region.factor) for region in regions]
        phases = [split_phases(crop[None], region.factor) for crop, region in zip(crops, regions, strict=True)]
        fused = self.fuser.crop_fuser.fuse(np.concatenate(sources), np.concatenate(phases))
        stop = 0
        for region, crop in zip(regions, crops, strict=True):
            rows = slice(stop, stop + region.factor**2)
            stop = rows.stop
            self.paste(region, crop, join_phases(FusedCrops(fused.crops[rows], fused.masks[rows]), region.factor))

    def paste(self, region: FaceRegion, own: Image, fused: FusedCrops) -> None:
        """Paste a fused face over `own`, the crop of its frame."""
        height, width = region.pixels.shape[:2]
        target = FaceCrops(own[None], (region.matrix,), ((0, 0, width, height),), region.factor)
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
