"""Steady fused faces over time: their masks, and their colours if asked for, by those of the frames around.

A network that sees every frame alone makes masks and colours that shake. The crops of a track lie on the same points of
the face, so what shakes can be averaged over frames. What changes by more than networks shake has moved, such as a hand
before the face, and stays as it is.

Shape suffixes: S crop size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from av import VideoFrame
from numpy.typing import NDArray

from fusionray.faces.face import Image, Matrix
from fusionray.runtime.config import PixelBoost
from fusionray.runtime.crop_fuser import FusedCrops
from fusionray.video.frames.region import Box
from fusionray.video.rendering import NumberedFrame

# How much a frame counts, by how many frames it is away: a binomial window, the discrete form of a Gaussian.
WEIGHTS = {0: 6, 1: 4, 2: 1}
REACH = max(WEIGHTS)
# What changes by so much has moved: of a mask (0..1), and of a colour, in levels.
MASK_MOTION, COLOUR_MOTION = 0.15, 12.0


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


@dataclass(frozen=True, eq=False)
class FusedFace:
    """A face that is fused and not pasted yet. `number` is that of its frame, `own` the crop of it, uint8 RGB [S,S,3];
    `fused` has one crop.
    """

    number: int
    track: int
    region: FaceRegion
    own: Image
    fused: FusedCrops

    @cached_property
    def colour(self) -> NDArray[np.float32]:
        """How far the fused face is from its frame's own face, on average: RGB [3] in levels.

        The light of the film changes both, so it is not in their difference.
        """
        mask_SS = self.fused.masks[0]
        change = self.fused.crops[0].astype(np.float32) - self.own
        total = np.einsum("hw,hwc->c", mask_SS, change)
        return np.asarray(total / max(1e-6, float(mask_SS.sum())), np.float32)


@dataclass(frozen=True, eq=False)
class FusedGroup:
    """Consecutive frames, and their fused faces."""

    frames: Sequence[NumberedFrame]
    faces: list[FusedFace]


def with_neighbours(groups: Iterable[FusedGroup]) -> Iterator[tuple[FusedGroup, list[FusedFace]]]:
    """Yield each group with its faces and those of the frames around, as soon as the next group is there.

    At the ends of a segment there are those of one side only. So its frames do not depend on other segments, and a run
    that goes on makes the same ones.
    """
    before: list[FusedFace] = []
    coming = iter(groups)
    group = next(coming, None)
    while group is not None:
        after = next(coming, None)
        faces = [*before, *group.faces]
        yield group, [*faces, *(after.faces if after else [])]
        last, _ = group.frames[-1]
        before = [face for face in faces if face.number > last - REACH]
        group = after


def steady(face: FusedFace, around: Iterable[FusedFace], *, with_colours: bool = False) -> FusedCrops:
    """Return the fused crop of a face with a mask, and if asked for a colour, that is averaged over the frames around.

    Other faces than those of its track, and crops of another size, do not count.
    """
    near = [
        other
        for other in around
        if other.track == face.track
        and 0 < abs(other.number - face.number) <= REACH
        and other.fused.masks.shape == face.fused.masks.shape
    ]
    weights = [WEIGHTS[abs(other.number - face.number)] for other in near]
    masks = average(face.fused.masks, [other.fused.masks for other in near], weights, MASK_MOTION)
    if not with_colours:
        return FusedCrops(face.fused.crops, masks)
    colour = average(face.colour, [other.colour for other in near], weights, COLOUR_MOTION)
    shifted = np.rint(face.fused.crops + (colour - face.colour))
    return FusedCrops(np.asarray(np.clip(shifted, 0, 255), np.uint8), masks)


def average(
    own: NDArray[np.float32], others: Sequence[NDArray[np.float32]], weights: Sequence[int], motion: float
) -> NDArray[np.float32]:
    """Average values over time; the more another one differs, the less it counts, and at `motion` it no longer does.

    Source: the biweight of Beaton and Tukey 1974, "The fitting of power series".
    """
    moved = np.zeros_like(own)
    for other, weight in zip(others, weights, strict=True):
        difference = other - own
        moved += weight * difference * np.square(np.maximum(1 - np.square(difference / motion), 0))
    return np.asarray(own + moved / (WEIGHTS[0] + sum(weights)), np.float32)
