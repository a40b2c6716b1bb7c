"""Faces of segments, and which of them go on across a seam."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.detectors.following import FaceFollower
from fusionray.faces.face import Detector, Image
from fusionray.video.face_fusion.finding import SegmentFaces, join_faces
from fusionray.video.face_fusion.tracking import FaceTracker
from tests.support.pictures import draw_empty, draw_person

SIDE, WIDTH, HEIGHT = 200, 640, 240


@pytest.fixture(scope="module")
def detector() -> Detector:
    return build_detector("default")


def show(*people: tuple[int, int]) -> Image:
    """Show people, (seed, left edge) each, on a slope of colours."""
    frame = draw_empty(WIDTH, HEIGHT).copy()
    for seed, left in people:
        frame[20 : 20 + SIDE, left : left + SIDE] = draw_person(seed, SIDE)
    return frame


def find(frames: list[Image], detector: Detector) -> SegmentFaces:
    tracker = FaceTracker(detector, FaceFollower())
    for frame in frames:
        tracker.add(frame)
    assert tracker.first is not None
    assert tracker.last is not None
    return SegmentFaces(tracker.finish(), tracker.frame, 2, tracker.first, tracker.last)


def test_faces_that_stay_go_on_across_seams(detector: Detector) -> None:
    frames = [show((4, 10 + number), (9, 400 - number)) for number in range(24)]
    whole = sorted(join_faces([find(frames, detector)]), key=lambda track: -track.boxes[0, 0])
    parts = [find(frames[first : first + 8], detector) for first in (0, 8, 16)]
    joined = sorted(join_faces(parts), key=lambda track: -track.boxes[0, 0])
    assert len(joined) == len(whole) == 2
    for track, other in zip(joined, whole, strict=True):
        np.testing.assert_array_equal(track.frames, np.arange(24))
        # A search begins the mesh anew, and moves its points by some hundredths of the face.
        assert np.abs(track.landmarks - other.landmarks).max() < 4


def test_a_cut_at_a_seam_ends_all_tracks(detector: Detector) -> None:
    before = find([show((4, 100))] * 4, detector)
    after = find([255 - show((4, 100))] * 3 + [show((4, 100))], detector)
    other = replace(after, tracks=find([show((9, 100))] * 4, detector).tracks)
    tracks = join_faces([before, other])
    assert [track.frames.tolist() for track in tracks] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_newcomer_in_the_last_frames_is_found(detector: Detector) -> None:
    frames = [show((4, 10))] * 15 + [show((4, 10), (9, 400))] * 5
    first, second = find(frames, detector).tracks
    assert first.frames.tolist() == list(range(20))
    assert second.frames.tolist() == list(range(15, 20))


def test_faces_of_a_segment_are_read_as_they_were_written(detector: Detector) -> None:
    found = find([show((4, 10), (9, 400))] * 3, detector)
    with_identity = replace(found.tracks[1], identity=np.eye(4, dtype=np.float32)[1])
    written = replace(found, tracks=[found.tracks[0], with_identity])
    read = SegmentFaces.decode(written.encode())
    assert (read.num_frames, read.num_damaged) == (3, 2)
    np.testing.assert_array_equal(read.first, written.first)
    for track, other in zip(read.tracks, written.tracks, strict=True):
        for name in ("frames", "landmarks", "boxes", "found", "identity"):
            np.testing.assert_array_equal(getattr(track, name), getattr(other, name))
    assert SegmentFaces.decode(replace(found, tracks=[]).encode()).tracks == []
