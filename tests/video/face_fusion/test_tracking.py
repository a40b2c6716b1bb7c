"""Whole shots with real models: who is in them from when to when, and how often they are searched."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.detectors.following import FaceFollower
from fusionray.faces.face import Detector, Face, Image
from fusionray.video.face_fusion.tracking import FaceTracker, is_cut, summarise
from fusionray.video.face_fusion.tracks import Track
from tests.support.pictures import draw_empty, draw_person

SIDE = 200


@pytest.fixture(scope="module")
def detector() -> Detector:
    return build_detector("default")


def show(*people: tuple[int, int], width: int = 640, height: int = 240) -> Image:
    """Show people, (seed, left edge) each, on a slope of colours."""
    frame = draw_empty(width, height).copy()
    for seed, left in people:
        low, high = max(0, left), min(width, left + SIDE)
        if low < high:
            frame[20 : 20 + SIDE, low:high] = draw_person(seed, SIDE)[:, low - left : high - left]
    return frame


def track(frames: list[Image], detector: Detector, *, follow: bool = True) -> tuple[list[Track], FaceTracker]:
    tracker = FaceTracker(detector, FaceFollower() if follow else None)
    for frame in frames:
        tracker.add(frame)
    return tracker.finish(), tracker


@pytest.mark.parametrize("follow", [True, False])
def test_two_people_who_move_are_two_tracks(detector: Detector, follow: bool) -> None:
    frames = [show((4, 10 + 2 * number), (9, 400 - number)) for number in range(30)]
    tracks, tracker = track(frames, detector, follow=follow)
    assert [len(each) for each in tracks] == [30, 30]
    assert tracker.num_searches == (4 if follow else 30)
    for each, speed in zip(sorted(tracks, key=lambda each: each.boxes[0, 0]), (2, -1), strict=True):
        steps = np.diff(each.landmarks[:, :, 0].mean(axis=1))
        assert steps.mean() == pytest.approx(speed, abs=0.1)


def test_a_face_that_is_covered_for_some_frames_is_one_track_with_a_gap(detector: Detector) -> None:
    frames = [show((4, 200)) if not 10 <= number < 15 else show() for number in range(30)]
    (found,), _ = track(frames, detector)
    assert found.frames.tolist() == [*range(10), *range(15, 30)]


def test_a_newcomer_is_seen_from_the_first_frame_on_and_one_who_leaves_ends(detector: Detector) -> None:
    frames = [show((4, 10), *([(9, 400)] if 5 <= number < 30 else [])) for number in range(60)]
    tracks, _ = track(frames, detector)
    stays, comes = tracks
    assert stays.frames.tolist() == list(range(60))
    assert comes.frames.tolist() == list(range(5, 30))


def test_a_cut_ends_all_tracks(detector: Detector) -> None:
    frames = [show((4, 200))] * 6 + [show((9, 210)) // 3] * 6
    tracks, tracker = track(frames, detector)
    assert [each.frames.tolist() for each in tracks] == [list(range(6)), list(range(6, 12))]
    # At the cut, and in the first and the last frame.
    assert tracker.num_searches == 3


class Stubborn:
    """A follower that sees the face where it was, whatever the picture shows."""

    def follow(self, image: Image, face: Face) -> Face:
        del image
        return face


def test_what_searches_do_not_see_was_no_face(detector: Detector) -> None:
    tracker = FaceTracker(detector, Stubborn(), search_every=5)
    for number in range(30):
        tracker.add(show((4, 200)) if number <= 10 else show())
    (found,) = tracker.finish()
    # Searches saw it in the frames 0, 5 and 10, and missed it in 15 and 20.
    assert found.frames.tolist() == list(range(11))


def test_pans_and_flashes_are_no_cuts() -> None:
    shots = [summarise(show((4, 10 * number))) for number in range(30)]
    assert not any(is_cut(before, after) for before, after in pairwise(shots))
    bright = np.clip(show((4, 290)).astype(int) + 25, 0, 255).astype(np.uint8)
    assert not is_cut(shots[-1], summarise(bright))
    assert is_cut(shots[-1], summarise(show((9, 100)) // 3))
