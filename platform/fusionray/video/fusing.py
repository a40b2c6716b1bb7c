"""Fuse the faces of a video: one pass finds and follows them, a second one fuses, pastes and encodes.

Between the passes, tracks are smoothed from both sides and gaps are filled, so that no frame flips back to the original
face. Only points are kept of the first pass: memory does not grow with the frames.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from fusionray.data.prefetch import map_ahead
from fusionray.faces.align import estimate_alignment, region_under, warp_crop
from fusionray.faces.face import Image, Matrix, Points
from fusionray.faces.following import FaceFollower
from fusionray.faces.paste import paste_crop
from fusionray.runtime.fuser import Fuser, edge_mask
from fusionray.runtime.pixels import FloatArray
from fusionray.video.colour import ColourSpace
from fusionray.video.planes import Box, FramePlanes
from fusionray.video.reader import VideoReader
from fusionray.video.tracking import LONGEST_LOSS, FaceTracker
from fusionray.video.tracks import Track, fill_gaps, smooth
from fusionray.video.upright import turn_points, turn_upright
from fusionray.video.writer import VideoWriter

# Frames that go through the generator together, and groups of them that wait or are computed at the same time.
GROUP_FRAMES, GROUPS_AHEAD = 4, 2

Progress = Callable[[], object]


@dataclass(frozen=True, eq=False)
class FaceRegion:
    """A face of a frame: the box of its pixels, these pixels, and the map from them to the crop."""

    planes: FramePlanes
    box: Box
    pixels: Image
    matrix: Matrix


def find_tracks(reader: VideoReader, fuser: Fuser, progress: Progress, *, with_identities: bool) -> list[Track]:
    """Find the faces of a whole video; points of the tracks are in pixels of the stored frame, before its rotation.

    Raises: VideoRejected; ImageRejected if the model cannot tell identities apart.
    """
    description = reader.description
    detector = fuser.preprocessor.detector
    embed = fuser.preprocessor.embed_face if with_identities else None
    tracker = FaceTracker(detector, FaceFollower(), embed=embed)
    # One for the whole video: each reformatter keeps memory for every frame that it has seen.
    reformatter = VideoReformatter()
    for frame in reader.frames():
        image = np.asarray(reformatter.reformat(frame, format="rgb24").to_ndarray(), np.uint8)
        tracker.add(turn_upright(image, description.rotation))
        progress()
    size = (description.width, description.height)
    return [turn_points(track, description.rotation, size) for track in tracker.finish()]


@dataclass(frozen=True, eq=False)
class FramePlan:
    """Which faces of a video are fused: `points` of each, by the number of the frame, in pixels of the stored frame.

    `source`: the encoded source, which all of them get.
    """

    points: dict[int, list[Points]]
    source: FloatArray

    @classmethod
    def of(cls, tracks: Iterable[Track], source: FloatArray, longest_gap: int = LONGEST_LOSS) -> FramePlan:
        """Fill the gaps of tracks, and smooth them."""
        points: dict[int, list[Points]] = defaultdict(list)
        for track in tracks:
            for part in map(smooth, fill_gaps(track, longest_gap)):
                for frame, landmarks in zip(part.frames.tolist(), part.landmarks, strict=True):
                    points[frame].append(landmarks)
        return cls(points, source)

    @property
    def num_faces(self) -> int:
        """Count the faces of all frames."""
        return sum(map(len, self.points.values()))


def fuse_frames(reader: VideoReader, writer: VideoWriter, fuser: Fuser, plan: FramePlan, progress: Progress) -> None:
    """Fuse the planned faces of a video, and write all of its frames in their order.

    Frames are decoded, fused and encoded at the same time, each a few frames ahead of the next stage.

    Raises: VideoRejected.
    """
    space = reader.description.space

    def work(group: list[tuple[av.VideoFrame, list[Points]]]) -> list[av.VideoFrame]:
        fuse_group(group, space, fuser, plan.source)
        return [frame for frame, _ in group]

    for frames in map_ahead(work, group_frames(reader, plan), at_once=GROUPS_AHEAD):
        for frame in frames:
            writer.write(frame)
            progress()


def group_frames(reader: VideoReader, plan: FramePlan) -> Iterator[list[tuple[av.VideoFrame, list[Points]]]]:
    """Yield the frames with their faces, a few at a time."""
    group: list[tuple[av.VideoFrame, list[Points]]] = []
    for number, frame in enumerate(reader.frames()):
        group.append((frame, plan.points.get(number, [])))
        if len(group) == GROUP_FRAMES:
            yield group
            group = []
    if group:
        yield group


def fuse_group(
    group: Sequence[tuple[av.VideoFrame, list[Points]]], space: ColourSpace, fuser: Fuser, source: FloatArray
) -> None:
    """Fuse the faces of some frames in one batch, in place."""
    size = fuser.preprocessor.size
    regions = [
        cut_region(FramePlanes.of(frame, space), estimate_alignment(points, fuser.preprocessor.template, size), size)
        for frame, faces in group
        for points in faces
    ]
    if not regions:
        return
    crops = np.stack([warp_crop(region.pixels, region.matrix, size) for region in regions])
    fused = fuser.crop_fuser.fuse(np.repeat(source[None], len(crops), axis=0), crops)
    masks: NDArray[Any] = fused.masks * edge_mask(fused.masks.shape[1])
    for region, crop, mask in zip(regions, fused.crops, masks, strict=True):
        pasted = region.pixels.copy()
        paste_crop(pasted, np.ascontiguousarray(crop), mask, region.matrix)
        region.planes.write(region.box, region.pixels, pasted)


def cut_region(planes: FramePlanes, matrix: Matrix, size: int) -> FaceRegion:
    """Read the pixels under a crop; a face outside of the frame has none, and the nearest pixel stands for it."""
    left, top, right, bottom = region_under(matrix, size, size, planes.luma)
    width, height = planes.luma.shape[1], planes.luma.shape[0]
    left, top = min(left, width - 1), min(top, height - 1)
    # Chroma covers two pixels: a region begins with a whole sample.
    box = (left - left % 2, top - top % 2, max(right, left + 1), max(bottom, top + 1))
    inside = matrix.copy()
    inside[:, 2] += matrix[:, :2] @ box[:2]
    return FaceRegion(planes, box, planes.read(box), inside)
