"""Sharpness, yaw and size of faces."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from fusionray.data.prepare.quality import box_around_landmarks, check_face, check_sharpness, sharpness, yaw_asymmetry
from fusionray.errors import ImageRejected
from fusionray.faces.align import load_template
from fusionray.faces.face import Face

FRONTAL = load_template("arcface_112").points(112)


def test_blur_and_enlargement_lower_the_sharpness() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (128, 128, 3), np.uint8)
    values = [sharpness(cv2.GaussianBlur(picture, (0, 0), sigma)) for sigma in (0.5, 1, 2, 4)]
    assert values == sorted(values, reverse=True)
    enlarged = cv2.resize(cv2.resize(picture, (16, 16), interpolation=cv2.INTER_AREA), (128, 128))
    assert sharpness(enlarged) < sharpness(picture) / 10
    with pytest.raises(ImageRejected) as caught:
        check_sharpness(np.full((128, 128, 3), 90, np.uint8), min_sharpness=1)
    assert caught.value.reason == "blurred"
    check_sharpness(np.full((128, 128, 3), 90, np.uint8), min_sharpness=0)


def test_turning_the_head_raises_the_asymmetry_and_tilting_it_does_not() -> None:
    assert yaw_asymmetry(FRONTAL) < 0.05
    turned = FRONTAL.copy()
    turned[2, 0] += 12
    angle = np.deg2rad(40)
    tilt = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], np.float32)
    assert yaw_asymmetry(turned) > 0.5
    assert yaw_asymmetry(turned @ tilt.T) == pytest.approx(yaw_asymmetry(turned), abs=1e-3)
    face = Face(box_around_landmarks(turned), turned, 1.0)
    check_face(face, min_face_pixels=10, max_yaw_asymmetry=None)
    with pytest.raises(ImageRejected) as caught:
        check_face(face, min_face_pixels=10, max_yaw_asymmetry=0.3)
    assert caught.value.reason == "not_frontal"


def test_a_small_face_is_refused_with_its_width() -> None:
    face = Face(np.array([5, 5, 31, 60], np.float32), FRONTAL, 1.0)
    check_face(face, min_face_pixels=31, max_yaw_asymmetry=None)
    with pytest.raises(ImageRejected, match="31 px wide") as caught:
        check_face(face, min_face_pixels=32, max_yaw_asymmetry=None)
    assert caught.value.reason == "face_too_small"
