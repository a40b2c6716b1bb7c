"""Synthetic contents and styles: each is given by its seed and number alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fusionray.data.prepare.quality import sharpness
from fusionray.data.synthetic.pictures import draw_contents, draw_style
from fusionray.data.synthetic.pictures.contents import NUM_KINDS
from fusionray.data.synthetic.pictures.styles import STYLES


@pytest.mark.parametrize("number", range(len(STYLES)))
def test_a_style_is_given_by_seed_and_number(number: int) -> None:
    picture = draw_style(3, number, 48)
    assert picture.shape == (48, 48, 3)
    assert picture.dtype == np.uint8
    np.testing.assert_array_equal(draw_style(3, number, 48), picture)
    for other in (draw_style(4, number, 48), draw_style(3, number + len(STYLES), 48)):
        assert np.abs(other.astype(int) - picture).mean() > 5


def test_contents_do_not_depend_on_what_they_are_drawn_with() -> None:
    numbers = [*range(NUM_KINDS), NUM_KINDS * 5]
    together = draw_contents(3, numbers, 48)
    for number, picture in zip(numbers, together, strict=True):
        (alone,) = draw_contents(3, [number], 48)
        assert np.abs(alone.astype(int) - picture).max() <= 1
    different = [np.abs(first.astype(int) - second).mean() for first, second in pairwise(together)]
    assert min(different) > 5


@pytest.mark.parametrize("size", [64, 128])
def test_none_is_dropped_as_blurred(size: int) -> None:
    pictures = [draw_style(1, number, size) for number in range(12)] + draw_contents(1, range(12), size)
    assert min(map(sharpness, pictures)) > 8
