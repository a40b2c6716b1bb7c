"""Whose skin a fused face has: rendered people, dark and light, of whom the middle of the face is exchanged."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fusionray.data import synthetic
from fusionray.faces.blending.skin import is_grey, match_skin, measure_skin, to_lab
from fusionray.faces.face import FloatMap, Image

SIDE = 96
TONE = synthetic.IDENTITY_NAMES.index("skin_tone")


@pytest.fixture(scope="module")
def middle() -> FloatMap:
    """The region that a model of photographs fuses: an ellipse, with soft edges."""
    mask = np.zeros((SIDE, SIDE), np.float32)
    cv2.ellipse(mask, (SIDE // 2, int(SIDE * 0.56)), (int(SIDE * 0.28), int(SIDE * 0.34)), 0, 0, 360, 1.0, -1)
    return np.asarray(cv2.GaussianBlur(mask, (0, 0), 2), np.float32)


def draw(people: torch.Tensor, seed: int) -> NDArray[np.uint8]:
    """Draw people with the same pose, expression and light, by seed: uint8 [N,S,S,3]."""
    looks = synthetic.sample_attributes(len(people), seed)
    view = torch.tensor([[0.5, 0.0, 0.25], [0.0, 0.5, 0.25]]).expand(len(people), 2, 3)
    pictures = (synthetic.render(people, looks, SIDE, view).clamp(0, 1) * 255).round().to(torch.uint8)
    return np.ascontiguousarray(pictures.permute(0, 2, 3, 1).numpy())


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Image, Image]]:
    """Fused and target crops: four dark people as light targets, and the other way round."""
    people = synthetic.sample_identities(40, 3)
    by_tone = people[people[:, TONE].argsort()]
    dark, light = by_tone[:4], by_tone[-4:]
    fused, targets = draw(torch.cat([dark, light]), 5), draw(torch.cat([light, dark]), 5)
    return list(zip(fused, targets, strict=True))


def skin_apart(first: Image, second: Image, skin: NDArray[np.bool_]) -> float:
    """Return the distance of two skins in CIELAB."""
    means = [measure_skin(to_lab(picture)[skin])[0] for picture in (first, second)]
    return float(np.linalg.norm(means[0] - means[1]))


def test_a_face_takes_the_colours_of_the_head_around_it(pairs: list[tuple[Image, Image]], middle: FloatMap) -> None:
    for fused, target in pairs:
        matched = match_skin(fused, target, middle, "target")
        # What is hair in both pictures is no skin.
        skin = (middle > 0.5) & (np.abs(fused.astype(int) - target).max(axis=-1) > 20)
        before, after = skin_apart(fused, target, skin), skin_apart(matched, target, skin)
        assert before > 15
        assert after < 0.25 * before


def test_its_relief_stays(pairs: list[tuple[Image, Image]], middle: FloatMap) -> None:
    def relief(picture: Image) -> float:
        lightness = cv2.GaussianBlur(to_lab(picture)[..., 0], (0, 0), 1)
        return float(np.std((lightness - cv2.GaussianBlur(lightness, (0, 0), 6))[middle > 0.5]))

    for fused, target in pairs:
        ratio = relief(match_skin(fused, target, middle, "target")) / relief(fused)
        assert 0.4 < ratio < 2


def test_what_the_model_did_not_change_keeps_its_colours(pairs: list[tuple[Image, Image]], middle: FloatMap) -> None:
    fused, target = (picture.copy() for picture in pairs[0])
    # A hand in front of the face: the model gives it back as it is.
    fused[40:60, 40:70] = target[40:60, 40:70] = (30, 60, 200)
    matched = match_skin(fused, target, middle, "target")
    difference = np.abs(matched[44:56, 44:66].astype(int) - fused[44:56, 44:66])
    assert difference.max() <= 2
    assert np.abs(matched[64:70, 40:60].astype(int) - fused[64:70, 40:60]).mean() > 10


def test_the_own_skin_is_the_crop_itself(pairs: list[tuple[Image, Image]], middle: FloatMap) -> None:
    fused, target = pairs[0]
    assert match_skin(fused, target, middle, "source") is fused
    # Where nothing is shown, nothing is known of the skin.
    assert match_skin(fused, target, np.zeros_like(middle), "target") is fused


@pytest.mark.parametrize("skin", ["source", "target"])
def test_a_grey_target_makes_a_grey_face(pairs: list[tuple[Image, Image]], middle: FloatMap, skin: str) -> None:
    fused, target = pairs[1]
    grey = cv2.cvtColor(cv2.cvtColor(target, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    _, encoded = cv2.imencode(".jpg", grey, [cv2.IMWRITE_JPEG_QUALITY, 80])
    stored = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    assert is_grey(stored)
    assert not is_grey(target)
    matched = match_skin(fused, stored, middle, skin)  # type: ignore[arg-type]
    assert np.ptp(matched.astype(int), axis=-1).max() <= 4


def test_faces_of_one_skin_are_hardly_changed(pairs: list[tuple[Image, Image]], middle: FloatMap) -> None:
    _, target = pairs[0]
    noisy = np.clip(target.astype(int) + np.random.default_rng(0).integers(-3, 4, target.shape), 0, 255)
    matched = match_skin(noisy.astype(np.uint8), target, middle, "target")
    assert np.abs(matched.astype(int) - noisy).mean() < 2
