from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fusionray.faces.image_files.decode import turn_upright
from fusionray.video.frames.orientation import matrix_of_rotation, orientation_of, upright_to_stored
from fusionray.video.frames.planes import blend_region, read_region
from fusionray.video.frames.upright import map_to_stored, read_upright
from tests.support.videos import make_frame

ONE = 1 << 16


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_pixels_are_found_where_they_are_stored(orientation: int) -> None:
    stored = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    upright = turn_upright(stored, orientation)
    matrix = upright_to_stored(orientation, 7, 5)
    for row, column in np.ndindex(upright.shape[:2]):
        x, y = matrix @ (column, row, 1)
        assert np.array_equal(upright[row, column], stored[int(y), int(x)])


@pytest.mark.parametrize(
    ("matrix", "orientation"),
    [
        (None, 1),
        ((ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30), 1),
        ((-ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30), 2),
        ((-ONE, 0, 0, 0, -ONE, 0, 0, 0, 1 << 30), 3),
        ((ONE, 0, 0, 0, -ONE, 0, 0, 0, 1 << 30), 4),
        ((0, ONE, 0, ONE, 0, 0, 0, 0, 1 << 30), 5),
        # A phone that is held upright: turned clockwise by 90 degrees.
        ((0, ONE, 0, -ONE, 0, 0, 0, 0, 1 << 30), 6),
        ((0, -ONE, 0, -ONE, 0, 0, 0, 0, 1 << 30), 7),
        ((0, -ONE, 0, ONE, 0, 0, 0, 0, 1 << 30), 8),
    ],
)
def test_display_matrices_are_exif_orientations(matrix, orientation: int) -> None:  # type: ignore[no-untyped-def]
    assert orientation_of(matrix) == orientation


@pytest.mark.parametrize(("degrees", "orientation"), [(0, 1), (90, 8), (180, 3), (-180, 3), (-90, 6), (-85, 6)])
def test_rotations_are_display_matrices(degrees: int, orientation: int) -> None:
    assert orientation_of(matrix_of_rotation(degrees)) == orientation


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv420p10le", "gbrp", "gray", "bgra"])
@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_a_small_upright_picture_shows_the_whole_frame(pixel_format: str, orientation: int) -> None:
    frame = make_frame(pixel_format, 192, 128)
    whole = turn_upright(read_region(frame, (0, 0, 192, 128)), orientation)
    small = read_upright(frame, 96, orientation=orientation)
    assert small.shape == (whole.shape[0] // 2, whole.shape[1] // 2, 3)
    expected = whole.reshape(small.shape[0], 2, small.shape[1], 2, 3).mean((1, 3))
    assert np.abs(small - expected).max() <= 3


@pytest.mark.parametrize(
    ("orientation", "aspect"), [(1, Fraction(1)), (6, Fraction(1)), (8, Fraction(4, 3)), (2, Fraction(8, 9))]
)
def test_a_spot_found_in_the_small_picture_lies_there_in_the_frame(orientation: int, aspect: Fraction) -> None:
    frame = make_frame("yuv444p", 320, 240)
    spot = (200, 60, 12, 10)
    blend_region(frame, spot, np.full((10, 12, 3), (255, 0, 0), np.uint8), np.ones((10, 12), np.float32))
    picture = read_upright(frame, 160, orientation=orientation, sample_aspect=aspect)
    red = (picture[..., 0] > 200) & (picture[..., 1] < 60)
    row, column = np.argwhere(red).mean(0)
    to_stored = map_to_stored(frame.width, frame.height, 160, orientation=orientation, sample_aspect=aspect)
    x, y = to_stored @ (column, row, 1)
    assert abs(x - 205.5) < 1.5
    assert abs(y - 64.5) < 1.5


def test_a_small_frame_is_not_enlarged() -> None:
    assert read_upright(make_frame("yuv420p", 97, 63), 640).shape == (63, 97, 3)


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuvj444p", "gray", "rgb24", "yuv420p10le"])
def test_a_frame_looks_as_its_regions_do(pixel_format: str) -> None:
    frame = make_frame(pixel_format, 96, 64)
    seen = read_upright(frame, 96).astype(int)
    exact = read_region(frame, (0, 0, 96, 64)).astype(int)
    # Away from the edges, chroma is interpolated in two ways.
    assert np.abs(seen - exact)[8:-8, 8:-8].max() <= 3
