"""Fused faces of a few frames whose mask and colour shake, or whose face a hand covers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from av import VideoFrame
from numpy.typing import NDArray

from fusionray.runtime.crop_fuser import FusedCrops
from fusionray.video.face_fusion.steadying import (
    REACH,
    FaceRegion,
    FusedFace,
    FusedGroup,
    steady,
    with_neighbours,
)
from fusionray.video.rendering import group_by

SIDE = 24
REGION = FaceRegion(VideoFrame(2, 2), (0, 0, 2, 2), np.zeros((2, 2, 3), np.uint8), np.eye(2, 3), 0, 1)


def make_face(number: int, *, mask: float = 0.6, fused: float = 150, own: float = 100, track: int = 0) -> FusedFace:
    return FusedFace(
        number,
        track,
        REGION,
        np.full((SIDE, SIDE, 3), own, np.uint8),
        FusedCrops(np.full((1, SIDE, SIDE, 3), fused, np.uint8), np.full((1, SIDE, SIDE), mask, np.float32)),
    )


def shake(values: list[float]) -> float:
    return float(np.abs(np.diff(values, 2)).mean())


def test_masks_that_shake_are_averaged() -> None:
    random = np.random.default_rng(0)
    masks = 0.6 + random.normal(0, 0.02, 40)
    faces = [make_face(number, mask=mask) for number, mask in enumerate(masks)]
    steadied = [float(steady(face, faces).masks.mean()) for face in faces]
    assert shake(steadied[REACH:-REACH]) < 0.4 * shake(list(masks[REACH:-REACH]))
    assert np.mean(steadied) == pytest.approx(masks.mean(), abs=0.002)


def test_a_hand_before_the_face_is_not_smeared() -> None:
    faces = [make_face(number, mask=0.9) for number in range(8)]
    # It covers a half of the face from the fifth frame on.
    for face in faces[4:]:
        face.fused.masks[:, :, : SIDE // 2] = 0
    for face in faces:
        assert np.array_equal(steady(face, faces).masks, face.fused.masks)


def test_only_faces_of_the_same_track_and_size_count_and_only_near_ones() -> None:
    face = make_face(10)
    far = [make_face(10 + REACH + 1, mask=0.64), make_face(10 - REACH - 1, mask=0.64)]
    other = make_face(11, mask=0.64, track=1)
    larger = FusedFace(
        11, 0, REGION, np.zeros((48, 48, 3), np.uint8), FusedCrops(np.zeros((1, 48, 48, 3), np.uint8), masks_of(48))
    )
    assert np.array_equal(steady(face, [face, *far, other, larger]).masks, face.fused.masks)
    assert steady(face, [face, make_face(11, mask=0.64)]).masks.mean() > 0.61


def masks_of(side: int) -> NDArray[np.float32]:
    return np.full((1, side, side), 0.64, np.float32)


def test_colours_are_steadied_if_asked_for_and_the_light_of_the_film_stays() -> None:
    # A lamp goes on in the fourth frame; the model adds 50 levels, and flickers by 2.
    light = [60, 60, 60, 140, 140, 140, 140, 140]
    flicker = [2, -2] * 4
    faces = [
        make_face(number, own=own, fused=own + 50 + wrong)
        for number, (own, wrong) in enumerate(zip(light, flicker, strict=True))
    ]
    assert all(np.array_equal(steady(face, faces).crops, face.fused.crops) for face in faces)
    for face, own in zip(faces, light, strict=True):
        colour = steady(face, faces, with_colours=True).crops.astype(int) - own - 50
        assert np.abs(colour).max() <= 1, face.number


def test_a_change_of_colour_that_no_model_shakes_by_stays() -> None:
    faces = [make_face(number, fused=150 if number < 3 else 190) for number in range(6)]
    for face in faces:
        assert np.array_equal(steady(face, faces, with_colours=True).crops, face.fused.crops)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_group_comes_with_the_faces_of_the_frames_around_it(count: int) -> None:
    frames = []
    for number in range(11):
        frame = VideoFrame(2, 2)
        frame.pts, frame.time_base = number, Fraction(1, 25)
        frames.append((number, frame))
    # The face is away in the fifth frame.
    groups = [
        FusedGroup(group, [make_face(number) for number, _ in group if number != 5])
        for group in group_by(frames, count)
    ]
    seen = []
    for group, around in with_neighbours(groups):
        numbers = {face.number for face in around}
        assert len(numbers) == len(around)
        for number, _ in group.frames:
            reach = min(REACH, count)
            wanted = set(range(max(0, number - REACH), min(11, number + reach + 1))) - {5}
            assert wanted <= numbers
            seen.append(number)
    assert seen == list(range(11))
    assert not list(with_neighbours([]))
