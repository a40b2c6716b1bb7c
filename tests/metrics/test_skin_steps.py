"""Colour steps around a fused face: known differences, and drawn heads whose face has another skin."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from fusionray.faces.blending.skin import from_lab, match_skin
from fusionray.faces.face import Image
from fusionray.metrics.skin_steps import ciede2000, estimate_parts, measure_steps, measure_tone, name_tone

SIZE = 96
LIGHT, DARK = (75.0, 12.0, 18.0), (35.0, 12.0, 16.0)


# Source: Sharma, Wu, Dalal 2005, table 1, pairs 1, 7, 9, 17, 20, 25, 31, 34.
@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
        ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0009), 7.1792),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((50.0, 2.5, 0.0), (58.0, 24.0, 15.0), 19.4535),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((90.8027, -2.0831, 1.441), (91.1528, -1.6435, 0.0447), 1.4441),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_differences_are_the_published_ones(
    first: tuple[float, ...], second: tuple[float, ...], difference: float
) -> None:
    for one, other in ((first, second), (second, first)):
        assert float(ciede2000(np.array(one), np.array(other))) == pytest.approx(difference, abs=1e-4)


def draw_head(skin: tuple[float, float, float], face: tuple[float, float, float] | None = None) -> Image:
    """Draw a head on a green ground, with brows and mouth; the middle of its face in another skin, if one is given."""
    lab = np.full((SIZE, SIZE, 3), (60.0, -40.0, 30.0), np.float32)
    lab[:, :, 0] += np.linspace(-3, 3, SIZE, dtype=np.float32)
    cv2.ellipse(lab, (48, 52), (36, 44), 0, 0, 360, skin, -1)
    if face is not None:
        cv2.ellipse(lab, (48, 54), (24, 28), 0, 0, 360, face, -1)
    for left in (34, 54):
        cv2.rectangle(lab, (left, 40), (left + 9, 43), (15.0, 5.0, 5.0), -1)
    cv2.ellipse(lab, (48, 72), (9, 3), 0, 0, 360, (40.0, 40.0, 20.0), -1)
    return from_lab(lab)


def test_a_dark_face_on_a_light_head_is_a_step_and_the_head_itself_none() -> None:
    fused, target = draw_head(LIGHT, DARK), draw_head(LIGHT)
    skin = estimate_parts(fused, target)
    steps, own = measure_steps(fused, skin), measure_steps(target, skin)
    wanted = float(ciede2000(np.array(LIGHT), np.array(DARK)))
    assert steps.whole == pytest.approx(wanted, rel=0.05)
    assert steps.edge == pytest.approx(wanted, rel=0.1)
    assert own.whole < 1
    assert own.edge < 1.5


def test_with_the_skin_of_the_head_the_step_is_gone() -> None:
    fused, target = draw_head(DARK, LIGHT), draw_head(DARK)
    mask = np.zeros((SIZE, SIZE), np.float32)
    cv2.ellipse(mask, (48, 54), (24, 28), 0, 0, 360, 1.0, -1)
    matched = match_skin(fused, target, mask, "target")
    before, after = (measure_steps(made, estimate_parts(made, target)) for made in (fused, matched))
    assert before.whole > 25
    # Where nothing has changed any more, there is no face to compare.
    assert np.isnan(after.whole) or after.whole < 3


def test_without_skin_around_the_face_there_is_nothing_to_measure() -> None:
    target = draw_head(LIGHT)
    everything = np.where((target == draw_head(DARK)).all(axis=-1, keepdims=True), target, draw_head(DARK))
    for fused in (target, everything):
        steps = measure_steps(fused, estimate_parts(fused, target))
        assert np.isnan([steps.whole, steps.edge]).all()


def test_tones_are_told_apart() -> None:
    assert [name_tone(measure_tone(draw_head(skin))) for skin in (DARK, (58.0, 14.0, 20.0), LIGHT)] == [
        "dark",
        "medium",
        "light",
    ]
