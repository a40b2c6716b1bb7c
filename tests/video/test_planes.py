from __future__ import annotations

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace, Interpolation

from fusionray.errors import VideoRejected
from fusionray.video.frames.planes import blend_region, read_region
from fusionray.video.frames.transfer import choose_hdr_transfer
from tests.support.videos import copy_planes, make_frame

FORMATS = ["yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuv420p10le", "yuv422p10le", "yuv444p12le", "yuva420p",
           "gbrp", "gbrp10le", "rgb24", "bgra", "gray"]  # fmt: skip
BT709, BT601, BT2020 = 1, 6, 9
PQ, HLG = 16, 18
BOX = (11, 7, 50, 40)


def all_of(box: tuple[int, int, int, int]) -> np.ndarray:
    return np.ones((box[3], box[2]), np.float32)


@pytest.mark.parametrize("transfer", [2, PQ, HLG])
@pytest.mark.parametrize("pixel_format", FORMATS)
def test_an_unchanged_region_keeps_every_bit(pixel_format: str, transfer: int) -> None:
    frame = make_frame(pixel_format, 97, 63, color_trc=transfer)
    before = copy_planes(frame)
    blend_region(frame, BOX, read_region(frame, BOX), all_of(BOX))
    assert all(np.array_equal(old, new) for old, new in zip(before, copy_planes(frame), strict=True))


@pytest.mark.parametrize("pixel_format", FORMATS)
def test_a_blend_changes_nothing_outside_of_its_mask(pixel_format: str) -> None:
    frame = make_frame(pixel_format, 97, 63)
    before = copy_planes(frame)
    mask = all_of(BOX) * 0
    mask[9:30, 10:35] = 0.7
    blend_region(frame, BOX, 255 - read_region(frame, BOX), mask)
    shown = np.zeros((63, 97), bool)
    shown[7 + 9 : 7 + 30, 11 + 10 : 11 + 35] = True
    for index, (old, new) in enumerate(zip(before, copy_planes(frame), strict=True)):
        if index == 3:
            assert np.array_equal(old, new), "alpha"
            continue
        step = frame.planes[index].line_size and old.shape[1] // frame.planes[index].width
        down = round(63 / len(old))
        across = round(97 / frame.planes[index].width)
        # A sample may change if it covers a pixel that the mask shows.
        covered = np.pad(shown, ((0, -63 % down), (0, -97 % across)))
        covered = covered.reshape(len(old), down, -1, across).any((1, 3)).repeat(step, 1)
        changed = old != new
        assert changed.any()
        assert not changed[~covered].any()


def test_a_mask_of_zeros_writes_nothing() -> None:
    frame = make_frame("yuv420p")
    shared = make_frame("yuv420p")
    before = copy_planes(shared)
    blend_region(shared, BOX, read_region(frame, BOX) // 2, all_of(BOX) * 0)
    assert all(np.array_equal(old, new) for old, new in zip(before, copy_planes(shared), strict=True))


# A new picture of another colour is read back: what rounding to codes costs, and what 4:2:0 does at its edge.
@pytest.mark.parametrize(
    ("pixel_format", "tags", "most"),
    [
        ("yuv420p", {"colorspace": BT601}, 2),
        ("yuv420p", {"colorspace": BT709}, 2),
        ("yuv422p", {"colorspace": BT2020}, 2),
        ("yuv444p", {"colorspace": BT709, "color_range": 2}, 2),
        ("yuvj420p", {}, 2),
        ("yuv420p10le", {"colorspace": BT709}, 1),
        ("yuv444p12le", {"colorspace": BT2020}, 1),
        ("gbrp", {}, 0),
        ("rgb24", {}, 0),
        ("bgra", {}, 0),
        ("yuv420p10le", {"colorspace": BT2020, "color_trc": PQ, "color_primaries": BT2020}, 4),
        ("yuv420p10le", {"colorspace": BT2020, "color_trc": HLG, "color_primaries": BT2020}, 4),
        ("yuv444p12le", {"colorspace": BT2020, "color_trc": PQ, "color_primaries": BT2020}, 1),
        ("yuv444p12le", {"colorspace": BT2020, "color_trc": HLG, "color_primaries": BT2020}, 1),
    ],
)
def test_a_new_picture_is_read_back_as_it_was_written(pixel_format: str, tags: dict[str, int], most: int) -> None:
    frame = make_frame(pixel_format, 97, 63, **tags)
    rows, columns = np.mgrid[0:40, 0:50]
    new = np.dstack([200 - rows, 90 + columns, 60 + rows + columns]).astype(np.uint8)
    blend_region(frame, BOX, new, all_of(BOX))
    difference = np.abs(read_region(frame, BOX).astype(int) - new)
    # Two pixels of the edge share chroma with the old picture around it.
    assert difference[2:-2, 2:-2].max() <= most


def test_a_float_picture_keeps_finer_steps_than_bytes() -> None:
    frame = make_frame("yuv444p10le", 64, 64)
    box = (0, 0, 64, 64)
    grey = np.repeat((np.arange(64, dtype=np.float32) / 64 * 0.06 + 0.5)[None, :, None], 3, 2).repeat(64, 0)
    blend_region(frame, box, grey.astype(np.float32), all_of(box))
    luma = np.frombuffer(memoryview(frame.planes[0]), np.uint16).reshape(64, -1)[0, :64]
    assert len(np.unique(luma)) > 45


def test_half_a_mask_is_half_way_between_the_codes() -> None:
    frame, whole = make_frame("yuv444p", colorspace=BT709), make_frame("yuv444p", colorspace=BT709)
    old = [plane.astype(int) for plane in copy_planes(frame)]
    box = (0, 0, 96, 64)
    new = np.full((64, 96, 3), (20, 220, 120), np.uint8)
    blend_region(frame, box, new, all_of(box) * np.float32(0.5))
    blend_region(whole, box, new, all_of(box))
    for before, half, after in zip(old, copy_planes(frame), copy_planes(whole), strict=True):
        assert np.abs((before + after.astype(int)) / 2 - half).max() <= 1


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le"])
@pytest.mark.parametrize(
    ("tag", "colorspace"), [(BT601, Colorspace.ITU601), (BT709, Colorspace.ITU709), (BT2020, Colorspace.BT2020)]
)
@pytest.mark.parametrize("color_range", [1, 2])
def test_colours_are_those_of_ffmpeg(pixel_format: str, tag: int, colorspace: Colorspace, color_range: int) -> None:
    frame = make_frame(pixel_format, 96, 64, colorspace=tag, color_range=color_range)
    exact = Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND
    expected = av.video.reformatter.VideoReformatter().reformat(
        frame, format="rgb24", interpolation=exact, src_colorspace=colorspace,
        src_color_range=color_range, dst_color_range=ColorRange.JPEG,
    )  # fmt: skip
    box = (12, 8, 70, 50)
    difference = np.abs(read_region(frame, box).astype(int) - expected.to_ndarray()[8:58, 12:82])
    assert difference.max() <= 2
    # FFmpeg shifts ten bits of full range to eight, where 1023 / 255 would be exact.
    assert difference.mean() < 0.7


@pytest.mark.parametrize(("height", "tag"), [(480, BT601), (576, BT601), (720, BT709), (1080, BT709)])
def test_an_untagged_video_is_shown_as_players_do(height: int, tag: int) -> None:
    untagged, tagged = make_frame("yuv420p", 64, height), make_frame("yuv420p", 64, height, colorspace=tag)
    assert np.array_equal(read_region(untagged, (0, 0, 64, 40)), read_region(tagged, (0, 0, 64, 40)))


@pytest.mark.parametrize("side", [(1, 1), (2, 3), (33, 31)])
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p10le", "gbrp"])
def test_boxes_of_any_side_at_any_edge_are_read_and_written(pixel_format: str, side: tuple[int, int]) -> None:
    frame = make_frame(pixel_format, 33, 31)
    whole = read_region(frame, (0, 0, 33, 31))
    width, height = side
    for left, top in {(0, 0), (33 - width, 31 - height), ((33 - width) // 2, (31 - height) // 2)}:
        part = read_region(frame, (left, top, width, height))
        assert np.array_equal(part, whole[top : top + height, left : left + width])
        blend_region(frame, (left, top, width, height), part, np.ones((height, width), np.float32))
    assert np.array_equal(read_region(frame, (0, 0, 33, 31)), whole)


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 60, 5, 5), (90, 0, 7, 5), (3, 3, 0, 5)])
def test_a_box_that_leaves_the_frame_is_refused(box: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="leaves the frame of 96 x 64"):
        read_region(make_frame("yuv420p"), box)


def test_shapes_that_differ_from_the_box_are_refused() -> None:
    with pytest.raises(ValueError, match="differ from the box of 50 x 40"):
        blend_region(make_frame("yuv420p"), BOX, np.zeros((50, 40, 3), np.uint8), all_of(BOX))


def test_unknown_matrices_and_formats_are_refused() -> None:
    with pytest.raises(VideoRejected, match="colour matrix bt2020c is not supported"):
        read_region(make_frame("yuv420p", colorspace=10), BOX)
    with pytest.raises(VideoRejected, match="pixel format yuyv422 is not supported"):
        read_region(av.VideoFrame(96, 64, "yuyv422"), BOX)


def grey_code(nits: float) -> int:
    """Return the 10-bit limited luma of a grey in PQ. Source: SMPTE ST 2084."""
    root = (nits / 10000) ** (2610 / 16384)
    signal = ((3424 / 4096 + 2413 / 128 * root) / (1 + 2392 / 128 * root)) ** (2523 / 32)
    return int(64.5 + 876 * signal)


def make_grey_pq(nits: float) -> av.VideoFrame:
    frame = make_frame("yuv420p10le", colorspace=BT2020, color_trc=PQ)
    for plane, code in zip(frame.planes, (grey_code(nits), 512, 512), strict=True):
        np.frombuffer(memoryview(plane), np.uint16)[:] = code
    return frame


def test_the_reference_white_of_hdr_is_srgb_white() -> None:
    assert read_region(make_grey_pq(203), BOX).min() >= 254
    # A quarter of the light of white is sRGB 137.
    assert np.abs(read_region(make_grey_pq(203 / 4), BOX).astype(int) - 137).max() <= 1
    hlg = choose_hdr_transfer("arib-std-b67")
    assert hlg is not None
    # Source: ITU-R BT.2408: reference white is 75 % of HLG.
    assert hlg.to_srgb(np.full((2, 2, 3), 0.75, np.float32)).min() >= 254


def test_highlights_stay_where_the_network_leaves_them_white_and_go_where_it_paints() -> None:
    frame = make_grey_pq(1000)
    new = read_region(frame, BOX)
    assert new.min() == 255
    new[:, 25:] = (180, 130, 110)
    blend_region(frame, BOX, new, all_of(BOX))
    luma = np.frombuffer(memoryview(frame.planes[0]), np.uint16).reshape(64, -1)[7:47, 11:61]
    assert (luma[:, :24] == grey_code(1000)).all()
    assert luma[:, 26:].max() < grey_code(203)
    assert np.abs(read_region(frame, (40, 10, 18, 30)).astype(int) - (180, 130, 110)).max() <= 2


@pytest.mark.parametrize("name", ["smpte2084", "arib-std-b67"])
def test_hdr_curves_are_inverse_of_each_other(name: str) -> None:
    transfer = choose_hdr_transfer(name)
    assert transfer is not None
    every = np.arange(256, dtype=np.uint8)
    colours = np.dstack(
        [every[:, None].repeat(8, 1), every[None, ::32].repeat(256, 0), 255 - every[:, None].repeat(8, 1)]
    )
    assert np.abs(transfer.to_srgb(transfer.from_srgb(colours)).astype(int) - colours).max() <= 1
