"""The skin of a fused face is carried over the head: where it is, what it becomes, and what keeps its bytes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from fusionray.faces.align import fit_similarity, load_template
from fusionray.faces.blending.head_skin import COLOUR_TRUST, carry_skin, compare_colours, find_skin
from fusionray.faces.blending.skin import SkinShift, to_lab
from fusionray.faces.face import FloatMap, Image, Matrix

SKIN, HAIR, CLOTHES, WALL = (205, 160, 130), (60, 40, 30), (240, 240, 245), (120, 150, 170)
SIDE, COARSE = 512, 128
SCALE = 3.0


def draw_head() -> tuple[Image, FloatMap]:
    """Draw a head on a wall, with ears, neck and clothes, and return where its skin is."""
    picture = np.full((SIDE, SIDE, 3), WALL, np.uint8)
    skin = np.zeros((SIDE, SIDE), np.uint8)
    cv2.ellipse(picture, (256, 210), (120, 150), 0, 0, 360, HAIR, -1)
    cv2.rectangle(picture, (100, 430), (412, 512), CLOTHES, -1)
    for shape in (picture, skin):
        colour = SKIN if shape is picture else 1
        cv2.ellipse(shape, (256, 240), (90, 120), 0, 0, 360, colour, -1)
        cv2.rectangle(shape, (216, 340), (296, 460), colour, -1)
        for x in (160, 352):
            cv2.ellipse(shape, (x, 250), (14, 28), 0, 0, 360, colour, -1)
    # Skin is lit from one side.
    light = np.linspace(0.85, 1.1, SIDE)[None, :, None]
    lit = np.where(skin[..., None] > 0, picture * light, picture)
    noise = np.random.default_rng(0).normal(0, 2, picture.shape)
    return np.clip(np.rint(lit + noise), 0, 255).astype(np.uint8), np.asarray(skin, np.float32)


def guess(skin: FloatMap) -> FloatMap:
    """Guess as a parser does that has hardly seen ears, and takes the end of a neck for clothes: coarse and unsure."""
    unsure = skin.copy()
    unsure[:, :176] *= 0.15
    unsure[:, 336:] *= 0.15
    unsure[410:] *= 0.15
    blurred = cv2.GaussianBlur(unsure, (0, 0), 9)
    return np.asarray(cv2.resize(blurred, (COARSE, COARSE), interpolation=cv2.INTER_AREA), np.float32)


def overlap(found: FloatMap, wanted: FloatMap) -> float:
    one, other = found > 0.5, wanted > 0.5
    return float((one & other).sum() / (one | other).sum())


def test_the_picture_says_where_the_skin_ends_that_a_parser_guessed() -> None:
    head, skin = draw_head()
    coarse = guess(skin)
    found = find_skin(head, coarse)
    before = overlap(np.asarray(cv2.resize(coarse, (SIDE, SIDE)), np.float32), skin)
    assert before < 0.85
    assert overlap(found, skin) > 0.95
    assert found[250, 160] > 0.7  # an ear
    assert found[450, 256] > 0.7  # the end of the neck
    assert found[470:, 120:400].max() < 0.1  # clothes


def test_the_skin_of_somebody_behind_is_left_alone() -> None:
    head, skin = draw_head()
    head[20:90, 20:90] = SKIN
    assert find_skin(head, guess(skin))[30:80, 30:80].max() < 0.2


def test_what_colours_say_is_bounded() -> None:
    head, skin = draw_head()
    ratio = compare_colours(to_lab(head), np.asarray(cv2.resize(guess(skin), (SIDE, SIDE)), np.float32))
    assert np.abs(ratio).max() <= COLOUR_TRUST
    assert ratio[skin > 0].mean() > 2
    assert ratio[skin == 0].mean() < -1


@pytest.fixture(scope="module")
def photograph() -> tuple[Image, FloatMap, Matrix]:
    """A head in a large picture, where its skin is, and the map to the crop of the parser."""
    head, skin = draw_head()
    large = np.full((2000, 1900, 3), WALL, np.uint8)
    where = np.zeros((2000, 1900), np.float32)
    place = (slice(150, 150 + round(SCALE * SIDE)), slice(80, 80 + round(SCALE * SIDE)))
    size = (round(SCALE * SIDE),) * 2
    large[place] = cv2.resize(head, size, interpolation=cv2.INTER_CUBIC)
    where[place] = cv2.resize(skin, size)
    share = COARSE / (SCALE * SIDE)
    return large, where, np.array([[share, 0, -80 * share], [0, share, -150 * share]])


def darker() -> SkinShift:
    before, after = (to_lab(np.full((1, 1, 3), colour, np.uint8))[0, 0] for colour in (SKIN, (120, 80, 60)))
    return SkinShift(before, after, np.ones(3, np.float32))


def test_all_skin_of_a_head_changes_alike_and_nothing_else(photograph: tuple[Image, FloatMap, Matrix]) -> None:
    picture, skin, to_head = photograph
    changed = picture.copy()
    carry_skin(changed, darker(), guess(draw_head()[1]), to_head)
    # Away from edges, whose pixels are of both.
    inside = cv2.erode(skin, np.ones((25, 25))) > 0.99
    outside = cv2.dilate(skin, np.ones((41, 41))) < 0.01
    wanted = darker().after - darker().before
    shifted = (to_lab(changed) - to_lab(picture))[inside]
    assert np.abs(shifted.mean(axis=0) - wanted).max() < 3
    assert shifted.std(axis=0).max() < 3
    difference = np.abs(changed.astype(int) - picture)[outside]
    assert np.quantile(difference, 0.99) == 0
    assert difference.max() < 25
    assert np.array_equal(changed[:100], picture[:100])
    assert np.array_equal(changed[:, 1700:], picture[:, 1700:])


def test_equal_skins_and_unknown_ones_change_nothing(photograph: tuple[Image, FloatMap, Matrix]) -> None:
    picture, _, to_head = photograph
    near = SkinShift(darker().before, darker().before + 1, np.ones(3, np.float32))
    for shift in (None, near):
        same = picture.copy()
        carry_skin(same, shift, guess(draw_head()[1]), to_head)
        assert np.array_equal(same, picture)


def test_a_crop_of_the_head_shows_hair_and_neck() -> None:
    head, narrow = load_template("head_256"), load_template("arcface_128")
    map_23 = fit_similarity(narrow.unit_points, head.unit_points)
    corners = np.array([[0, 0, 1], [1, 1, 1]]) @ map_23.T
    # The crop of the face lies in the middle of that of the head.
    assert (corners[0] > 0.15).all()
    assert (corners[1] < 0.85).all()
