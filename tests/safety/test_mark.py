from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from fusionray.safety.mark import Corner, Mark, MarkConfig
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import Provenance
from tests.support.pictures import draw_person

CORNERS: tuple[Corner, ...] = ("top-left", "top-right", "bottom-left", "bottom-right")


def flat(shade: int, height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), shade, np.uint8)


def find_plate(before: np.ndarray, after: np.ndarray) -> tuple[slice, slice]:
    rows, columns = np.nonzero((before != after).any(axis=2))
    return slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1)


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("size", [(64, 64), (480, 640), (1200, 300)])
def test_the_mark_is_in_its_corner_and_nowhere_else(corner: Corner, size: tuple[int, int]) -> None:
    picture = flat(120, *size)
    marked = Mark(MarkConfig(corner=corner)).draw(picture)
    rows, columns = find_plate(picture, marked)
    assert (rows.stop <= size[0] / 2) == corner.startswith("top")
    assert (rows.start >= size[0] / 2) == corner.startswith("bottom")
    assert (columns.stop <= size[1] / 2) == corner.endswith("left")
    assert (columns.start >= size[1] / 2) == corner.endswith("right")
    assert (rows.stop - rows.start) * (columns.stop - columns.start) < 0.08 * size[0] * size[1]


@pytest.mark.parametrize("shade", [0, 30, 128, 225, 255])
@pytest.mark.parametrize("side", [64, 256, 1024])
def test_letters_have_contrast_with_the_plate_on_any_background(shade: int, side: int) -> None:
    picture = flat(shade, side, side)
    plate = Mark(MarkConfig()).draw(picture)
    rows, columns = find_plate(picture, plate)
    inner = plate[rows, columns].mean(axis=2)
    height, width = inner.shape
    inner = inner[round(height * 0.2) : round(height * 0.8), round(width * 0.15) : round(width * 0.85)]
    light, dark = np.percentile(inner, 96), np.percentile(inner, 20)
    # The WCAG's contrast of two greys; 4.5 is its demand on text.
    luminance = [((level / 255 + 0.055) / 1.055) ** 2.4 + 0.05 for level in (light, dark)]
    assert luminance[0] / luminance[1] > 4.5


def test_the_share_sets_the_height_and_a_picture_keeps_its_own_bytes() -> None:
    picture = draw_person(3, 256)
    before = picture.copy()
    heights = []
    for share in (0.06, 0.12, 0.24):
        rows, _ = find_plate(picture, Mark(MarkConfig(share=share)).draw(picture))
        heights.append(rows.stop - rows.start)
    assert heights == pytest.approx([15, 31, 61], abs=1)
    assert np.array_equal(picture, before)


def test_a_picture_too_small_for_it_is_left_alone() -> None:
    picture = flat(9, 12, 12)
    assert np.array_equal(Mark(MarkConfig()).draw(picture), picture)


def test_the_mark_is_off_by_default_and_appears_in_the_output() -> None:
    assert not MarkConfig().enabled
    with pytest.raises(ValidationError, match="share"):
        MarkConfig(share=0.9)
    picture = draw_person(3, 64)
    plain = encode_output(picture, Provenance("tiny", "0"), signer=None)
    assert encode_output(picture, Provenance("tiny", "0"), signer=None, mark=Mark(MarkConfig())) != plain
