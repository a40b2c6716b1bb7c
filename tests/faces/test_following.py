"""A face is followed through frames whose true motion is known; its first frame is the only one that is searched."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator

import cv2
import numpy as np
import pytest

from fusionray.faces.align import transform_points
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.detectors.following import FaceFollower
from fusionray.faces.face import Face, Image, largest_face
from tests.support.pictures import draw_empty, draw_group, draw_person

WIDTH, HEIGHT = 640, 480


def move(picture: Image, shift: tuple[float, float], scale: float, roll: float) -> tuple[Image, np.ndarray]:
    """Show a picture moved, turned about its middle and scaled, on grey; return the frame and the map [2, 3]."""
    side = picture.shape[0]
    matrix = cv2.getRotationMatrix2D(((side - 1) / 2, (side - 1) / 2), math.degrees(roll), scale)
    matrix[:, 2] += shift
    grey = (110, 110, 110)
    return cv2.warpAffine(picture, matrix, (WIDTH, HEIGHT), flags=cv2.INTER_LINEAR, borderValue=grey), matrix


def walk(picture: Image, frames: int = 40) -> Iterator[tuple[Image, np.ndarray]]:
    """Move a person across the frame, while they come nearer and tilt their head."""
    for number in range(frames):
        share = number / (frames - 1)
        yield move(picture, (30 + 330 * share, 60 + 90 * share), 0.8 + 0.5 * share, 0.5 * math.sin(6 * share))


@pytest.fixture(scope="module")
def follower() -> FaceFollower:
    return FaceFollower()


def search(image: Image) -> Face:
    return largest_face(build_detector("default").detect(image))


def test_a_moving_face_stays_where_it_is_in_the_picture_of_the_person(follower: FaceFollower) -> None:
    frames = list(walk(draw_person(4, 256)))
    face = search(frames[0][0])
    first = transform_points(face.landmarks, cv2.invertAffineTransform(frames[0][1]))
    for image, matrix in frames[1:]:
        found = follower.follow(image, face)
        assert found is not None
        face = found
        apart = np.linalg.norm(transform_points(face.landmarks, cv2.invertAffineTransform(matrix)) - first, axis=1)
        # In the pixels of the person's picture, whose eyes are 50 apart.
        assert apart.mean() < 1.5
        assert face.outline is not None
    expected = search(frames[-1][0])
    eyes = np.linalg.norm(expected.landmarks[1] - expected.landmarks[0])
    assert np.linalg.norm(face.landmarks - expected.landmarks, axis=1).mean() < 0.03 * eyes
    assert np.abs(face.box - expected.box).max() < 0.15 * expected.box[2]


def test_each_of_two_people_is_followed(follower: FaceFollower) -> None:
    group = draw_group((4, 9), 200)
    faces = sorted(build_detector("default").detect(group), key=lambda face: face.box[0])
    moved = np.roll(group, 6, axis=1)
    for face in faces:
        found = follower.follow(moved, face)
        assert found is not None
        np.testing.assert_allclose(found.landmarks[:, 0], face.landmarks[:, 0] + 6, atol=1.5)


@pytest.mark.parametrize("gone", ["empty", "left", "small"])
def test_a_face_that_is_gone_is_lost(follower: FaceFollower, gone: str) -> None:
    person = draw_person(4, 256)
    image, _ = move(person, (200, 100), 1.0, 0.0)
    face = search(image)
    after = {
        "empty": draw_empty(WIDTH, HEIGHT),
        "left": move(person, (-160, 100), 1.0, 0.0)[0],
        "small": image[:60, :60],
    }[gone]
    assert follower.follow(after, face) is None


def test_only_faces_with_an_outline_are_followed(follower: FaceFollower) -> None:
    face = Face(np.array([10, 10, 50, 50], np.float32), np.zeros((5, 2), np.float32), 0.9)
    with pytest.raises(ValueError, match="no outline"):
        follower.follow(draw_empty(), face)


def test_a_follower_travels_to_another_process() -> None:
    image = draw_person(4, 256)
    face = search(image)
    follower = FaceFollower()
    assert follower.follow(image, face) is not None
    again = pickle.loads(pickle.dumps(follower)).follow(image, face)
    assert again is not None
    assert np.linalg.norm(again.landmarks - face.landmarks, axis=1).mean() < 1.0
