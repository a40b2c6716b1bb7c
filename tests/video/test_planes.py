"""Regions of planes as RGB and back, against FFmpeg's own conversion and against themselves."""

from __future__ import annotations

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace

from fusionray.video.colour import ColourSpace, MatrixName, Transfer
from fusionray.video.planes import FramePlanes
from tests.video.clips import draw_frame

BOX = (11, 7, 75, 58)
SPACES = [ColourSpace(matrix, full) for matrix in ("bt601", "bt709", "bt2020") for full in (False, True)]
FFMPEG = {"bt601": Colorspace.ITU601, "bt709": Colorspace.ITU709, "bt2020": 9}


def build(pixel_format: str, space: ColourSpace, size: tuple[int, int] = (96, 64)) -> tuple[av.VideoFrame, FramePlanes]:
    picture = av.VideoFrame.from_ndarray(draw_frame(3, *size), format="rgb24")
    color_range = ColorRange.JPEG if space.full_range else ColorRange.MPEG
    frame = picture.reformat(format=pixel_format, dst_colorspace=FFMPEG[space.matrix], dst_color_range=color_range)
    frame.make_writable()
    return frame, FramePlanes.of(frame, space)


def copy(planes: FramePlanes) -> list[np.ndarray]:
    return [plane.copy() for plane in (planes.luma, *planes.chroma)]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("pixel_format", ["yuv444p", "yuv422p", "yuv420p"])
def test_a_region_has_the_colours_that_the_frame_was_made_of(pixel_format: str, space: ColourSpace) -> None:
    _, planes = build(pixel_format, space)
    left, top, right, bottom = BOX
    apart = np.abs(planes.read(BOX).astype(int) - draw_frame(3)[top:bottom, left:right])
    # FFmpeg puts chroma of full range between two pixels, unlike the encoders of videos.
    shifted = space.full_range and pixel_format != "yuv444p"
    assert apart.max() <= (6 if shifted else 4)
    assert apart.mean() < (1.7 if shifted else 1.0)


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p", "yuv444p"])
@pytest.mark.parametrize("size", [(96, 64), (95, 63)])
def test_writing_what_was_read_changes_no_bit(pixel_format: str, size: tuple[int, int]) -> None:
    _, planes = build(pixel_format, ColourSpace(), size)
    before = copy(planes)
    whole = (0, 0, *size)
    read = planes.read(whole)
    planes.write(whole, read, read)
    assert all(np.array_equal(old, new) for old, new in zip(before, copy(planes), strict=True))


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p", "yuv444p"])
def test_an_edit_is_read_back_and_nothing_beside_it_changes(pixel_format: str) -> None:
    _, planes = build(pixel_format, ColourSpace())
    before, read = copy(planes), planes.read(BOX)
    edited = read.copy()
    edited[16:36, 20:44] = np.clip(edited[16:36, 20:44].astype(int) + np.array([20, -12, 6]), 0, 255)
    planes.write(BOX, read, edited)
    inside = planes.read(BOX)[19:33, 23:41].astype(int) - edited[19:33, 23:41]
    assert np.abs(inside).max() <= 3
    # The edit lies at 31..54 x 23..42 of the frame, and chroma reaches a sample farther.
    for number, (old, new) in enumerate(zip(before, copy(planes), strict=True)):
        rows, columns = np.nonzero(old != new)
        across, down = (planes.across, planes.down) if number else (1, 1)
        room = across if number else 0
        assert columns.min() * across >= 31 - room
        assert columns.max() * across <= 54 + room
        assert rows.min() * down >= 23 - room
        assert rows.max() * down <= 42 + room


@pytest.mark.parametrize(("transfer", "matrix"), [("pq", "bt2020"), ("hlg", "bt2020"), ("sdr", "bt709")])
def test_ten_bits_keep_what_eight_cannot_show(transfer: Transfer, matrix: MatrixName) -> None:
    space = ColourSpace(matrix, transfer=transfer, bits=10)
    luma = np.linspace(64, 940, 64 * 96).reshape(64, 96).astype("<u2")
    planes = FramePlanes(luma, (np.full((32, 48), 512, "<u2"), np.full((32, 48), 512, "<u2")), 2, 2, space)
    before, box = copy(planes), (0, 0, 96, 64)
    read = planes.read(box)
    assert read[0, 0].max() == 0
    assert read[-1, -1].min() == 255
    edited = read.copy()
    edited[10:20] = np.clip(edited[10:20].astype(int) + 10, 0, 255)
    planes.write(box, read, edited)
    # Steps of 10 bits, and highlights above what is shown, are still there beside the edit.
    assert np.array_equal(planes.luma[24:], before[0][24:])
    assert (np.diff(planes.luma[12].astype(int)) >= 0).all()
    assert np.abs(planes.read(box)[12:18].astype(int) - edited[12:18]).max() <= 2


@pytest.mark.parametrize("transfer", ["pq", "hlg"])
def test_what_is_shown_of_hdr_is_restored(transfer: Transfer) -> None:
    space = ColourSpace("bt2020", transfer=transfer, bits=10)
    shown = np.random.default_rng(1).uniform(0, 1, (2000, 3)).astype(np.float32)
    np.testing.assert_allclose(space.show(space.restore(shown)), shown, atol=2e-3)
    # White is the reference white, and brighter light is white, too.
    white = space.to_signal(np.full(3, 203.0, np.float32))
    np.testing.assert_allclose(space.show(white[None]), 1.0, atol=2e-3)
    assert white.mean() == pytest.approx({"pq": 0.58, "hlg": 0.75}[transfer], abs=0.01)
