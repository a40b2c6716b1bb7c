"""A fused face gets the sharpness and the grain of what it replaces, and no edge of it."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from fusionray.faces.align import warp_crop
from fusionray.faces.blending.grain import LARGEST_GAIN, add_grain, enlarge_mask, match_sharpness, measure_details
from fusionray.faces.blending.paste import paste_crop
from fusionray.faces.face import FloatMap, Image, Matrix
from tests.support.pictures import draw_person

CROP, SCALE = 64, 5
SIDE = CROP * SCALE
TO_CROP: Matrix = np.array([[1 / SCALE, 0, 0.5 / SCALE - 0.5], [0, 1 / SCALE, 0.5 / SCALE - 0.5]])
DEVIATION = 6.0


@pytest.fixture(scope="module")
def mask() -> FloatMap:
    shown = np.zeros((CROP, CROP), np.float32)
    shown[12:-12, 12:-12] = 1.0
    return shown


def spread(picture: Image, rows: slice = slice(100, -100)) -> float:
    """Return the deviation of what is finer than the crop's pixels."""
    values = picture[rows, rows].astype(np.float32).mean(axis=-1)
    return float((values - cv2.GaussianBlur(values, (0, 0), SCALE)).std())


def draw_noisy(seed: int = 0) -> Image:
    noise = np.random.default_rng(seed).normal(0, DEVIATION, (SIDE, SIDE, 1))
    return np.clip(np.rint(140 + noise), 0, 255).astype(np.uint8).repeat(3, axis=2)


def paste(picture: Image, crop: Image, mask: FloatMap, matrix: Matrix = TO_CROP) -> tuple[Image, Image]:
    """Paste a crop; return the picture without its grain, and with it."""
    plain = picture.copy()
    paste_crop(plain, crop, mask, matrix)
    grained = plain.copy()
    add_grain(grained, picture, mask, matrix)
    return plain, grained


def test_a_soft_face_becomes_as_sharp_as_the_crop_that_it_replaces(mask: FloatMap) -> None:
    target = draw_person(2, CROP)
    soft = cv2.GaussianBlur(target, (0, 0), 0.8)
    sharper = match_sharpness(soft, target, mask)

    def see(crop: Image) -> float:
        grey = crop.astype(np.float32).mean(axis=-1)
        return measure_details((grey - cv2.GaussianBlur(grey, (0, 0), 1.6))[mask > 0.5])

    assert see(soft) < 0.85 * see(target)
    assert see(sharper) == pytest.approx(see(target), rel=0.2)


def test_a_sharp_face_stays_and_a_flat_one_is_not_stretched_into_noise(mask: FloatMap) -> None:
    target = draw_person(2, CROP)
    assert match_sharpness(target, cv2.GaussianBlur(target, (0, 0), 2), mask) is target
    assert match_sharpness(target, target, np.zeros_like(mask)) is target
    flat = cv2.GaussianBlur(target, (0, 0), 4)
    change = match_sharpness(flat, target, mask).astype(int) - flat
    details = flat - cv2.GaussianBlur(flat.astype(np.float32), (0, 0), 1.6)
    assert np.abs(change).max() <= (LARGEST_GAIN - 1) * np.abs(details).max() + 1


def test_a_clean_face_gets_the_noise_of_its_picture(mask: FloatMap) -> None:
    picture = draw_noisy()
    plain, grained = paste(picture, np.full((CROP, CROP, 3), 90, np.uint8), mask)
    assert spread(plain) < 1
    assert 0.75 * spread(picture) < spread(grained) < 1.05 * spread(picture)
    # The colour stays that of the fused face.
    assert abs(grained[100:-100, 100:-100].mean() - 90) < 1


@pytest.mark.parametrize("strength", [0.4, 0.8])
def test_a_face_that_is_blended_in_by_a_part_has_that_part_of_the_grain(mask: FloatMap, strength: float) -> None:
    picture = draw_noisy()
    plain, grained = paste(picture, np.full((CROP, CROP, 3), 90, np.uint8), mask * np.float32(strength))
    assert spread(plain) < 1.1 * (1 - strength) * spread(picture)
    assert 0.75 * spread(picture) < spread(grained) < 1.05 * spread(picture)


def test_a_mask_is_enlarged_as_by_a_warp_of_every_pixel() -> None:
    y, x = np.mgrid[:CROP, :CROP]
    soft = np.clip(2 - 2 * np.hypot(x - 30, y - 34) / 24, 0, 1).astype(np.float32)
    for enlargement in (1.2, 3.0, 4.6, 11.0):
        turned: Matrix = np.array([[1 / enlargement, 0.02, -1.5], [-0.02, 1 / enlargement, 2.5]])
        width, height = round(50 * enlargement), round(57 * enlargement)
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        exact = cv2.warpAffine(soft, turned, (width, height), flags=flags, borderValue=0)
        assert np.abs(enlarge_mask(soft, turned, width, height) - exact).max() < 0.03


def test_what_is_not_shown_keeps_its_bytes(mask: FloatMap) -> None:
    picture = draw_noisy()
    _, grained = paste(picture, np.full((CROP, CROP, 3), 90, np.uint8), mask)
    assert np.array_equal(grained[: 11 * SCALE - 1], picture[: 11 * SCALE - 1])
    assert np.array_equal(grained[:, -11 * SCALE + 1 :], picture[:, -11 * SCALE + 1 :])


def test_edges_of_the_person_who_was_there_do_not_come_back(mask: FloatMap) -> None:
    picture = draw_noisy()
    # A mouth of the target, in the middle.
    picture[155:165, 110:210] = 20
    _, grained = paste(picture, np.full((CROP, CROP, 3), 140, np.uint8), mask)
    assert np.abs(grained[150:170, 110:210].astype(int).mean(axis=(1, 2)) - 140).max() < 12


@pytest.mark.parametrize("case", ["clean picture", "crop of the picture's own size"])
def test_where_there_is_no_grain_none_is_added(mask: FloatMap, case: str) -> None:
    picture = np.full((SIDE, SIDE, 3), 140, np.uint8) if case == "clean picture" else draw_noisy()
    matrix = TO_CROP if case == "clean picture" else np.array([[1.0, 0, -100], [0, 1.0, -100]])
    plain, grained = paste(picture, np.full((CROP, CROP, 3), 90, np.uint8), mask, matrix)
    assert np.array_equal(plain, grained)


def test_a_perfect_crop_with_grain_is_nearly_its_picture(mask: FloatMap) -> None:
    large = cv2.resize(draw_person(3, 160), (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    noise = np.random.default_rng(1).normal(0, DEVIATION, (SIDE, SIDE, 1))
    picture = np.clip(np.rint(large + noise), 0, 255).astype(np.uint8)
    plain, grained = paste(picture, warp_crop(picture, TO_CROP, CROP), mask)
    before, after = (float(np.abs(made.astype(int) - picture)[100:-100, 100:-100].mean()) for made in (plain, grained))
    assert after < 0.6 * before
