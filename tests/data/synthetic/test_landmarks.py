from __future__ import annotations

import math

import torch

from fusionray.data.synthetic import (
    ATTRIBUTE_NAMES,
    neutral_attributes,
    project_landmarks,
    sample_attributes,
    sample_identities,
)


def turned(name: str, value: float, count: int = 6) -> torch.Tensor:
    attributes = neutral_attributes(count)
    attributes[:, ATTRIBUTE_NAMES.index(name)] = value
    return attributes


def test_landmarks_lie_inside_the_picture():
    points = project_landmarks(sample_identities(3000, 0), sample_attributes(3000, 1))
    assert points.shape == (3000, 5, 2)
    assert points.dtype == torch.float32
    assert points.min() > 0.02
    assert points.max() < 0.98


def test_landmarks_are_ordered_as_seen_in_the_image():
    left_eye, right_eye, nose, left_mouth, right_mouth = project_landmarks(
        sample_identities(200, 3), neutral_attributes(200)
    ).unbind(1)
    assert (left_eye[:, 0] < nose[:, 0]).all()
    assert (nose[:, 0] < right_eye[:, 0]).all()
    assert (left_mouth[:, 0] < right_mouth[:, 0]).all()
    assert (left_eye[:, 1] < nose[:, 1]).all()
    assert (nose[:, 1] < left_mouth[:, 1]).all()


def test_yaw_moves_the_nose_against_the_eyes():
    identity = sample_identities(6, 4)
    offsets = []
    for yaw in (-40.0, -20.0, 0.0, 20.0, 40.0):
        points = project_landmarks(identity, turned("yaw", yaw))
        eyes = points[:, :2].mean(dim=1)
        offsets.append((points[:, 2] - eyes)[:, 0])
    steps = torch.stack(offsets).diff(dim=0)
    assert (steps > 0.01).all()


def test_looking_up_lifts_the_nose():
    identity = sample_identities(6, 4)
    up, down = (project_landmarks(identity, turned("pitch", pitch)) for pitch in (20.0, -20.0))
    assert (up[:, 2, 1] < down[:, 2, 1] - 0.05).all()


def test_roll_turns_the_line_between_the_eyes():
    points = project_landmarks(sample_identities(6, 4), turned("roll", 15.0))
    across = points[:, 1] - points[:, 0]
    angles = torch.atan2(across[:, 1], across[:, 0])
    torch.testing.assert_close(angles, torch.full((6,), math.radians(15.0)), atol=1e-4, rtol=0.0)


def test_a_smile_widens_the_mouth_and_lifts_its_corners():
    identity = sample_identities(6, 4)
    glad, sad = (project_landmarks(identity, turned("smile", smile)) for smile in (1.0, -1.0))
    assert ((glad[:, 4] - glad[:, 3])[:, 0] > (sad[:, 4] - sad[:, 3])[:, 0]).all()
    assert (glad[:, 3, 1] < sad[:, 3, 1]).all()
