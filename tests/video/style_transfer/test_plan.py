from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from fusionray.bands.array import ArrayBands
from fusionray.bundle.bundle import read_bundle
from fusionray.runtime.style_transfer.stylizer import Stylizer
from fusionray.video.files.reader import VideoReader
from fusionray.video.segments import Segment, plan_segments
from fusionray.video.style_transfer.measuring import SegmentStatistics, measure_segment, read_whole
from fusionray.video.style_transfer.plan import StylePlan, smooth

DARK, BRIGHT = np.zeros((32, 32), np.int16), np.full((32, 32), 200, np.int16)


def scan(
    frames: list[int], values: list[float], num_frames: int, *, cuts: tuple[int, ...] = (), tones: Any = (DARK, DARK)
) -> SegmentStatistics:
    table = np.array(values, np.float32)[:, None]
    return SegmentStatistics(np.array(frames), table, np.array(cuts, np.int64), *tones, num_frames, 0)


def test_a_straight_line_stays_one_and_a_constant_stays_constant() -> None:
    (line,) = StylePlan([scan([0, 20, 60, 79], [0.0, 20.0, 60.0, 79.0], 80)]).part(0, 80).T
    np.testing.assert_allclose(line[12:-12], np.arange(12, 68), rtol=1e-5)
    (constant,) = smooth(np.full((30, 1), 7.0, np.float32)).T
    np.testing.assert_allclose(constant, 7.0, rtol=1e-6)
    np.testing.assert_allclose(smooth(np.full((1, 2), 3.0, np.float32)), 3.0)


def test_what_is_measured_jumps_at_a_cut_and_nowhere_else() -> None:
    within = StylePlan([scan([0, 29, 30, 59], [1.0, 1.0, 5.0, 5.0], 60, cuts=(30,))])
    (values,) = within.part(0, 60).T
    np.testing.assert_allclose(values, [1.0] * 30 + [5.0] * 30)
    assert within.cuts == [0, 30]
    parts = [scan([0, 29], [1.0, 1.0], 30, tones=(DARK, DARK)), scan([0, 29], [5.0, 5.0], 30, tones=(BRIGHT, BRIGHT))]
    assert StylePlan(parts).cuts == [0, 30]
    same = StylePlan([scan([0, 29], [1.0, 1.0], 30), scan([0, 29], [5.0, 5.0], 30)])
    (values,) = same.part(0, 60).T
    assert same.cuts == [0]
    assert 1.0 < values[29] < values[30] < 5.0
    assert np.abs(np.diff(values)).max() < 0.5


def test_parts_are_those_of_the_whole() -> None:
    random = np.random.default_rng(0)
    frames = list(range(0, 97, 4))
    plan = StylePlan([scan(frames, random.uniform(1, 2, len(frames)).tolist(), 97, cuts=(40,))])
    whole = plan.part(0, 97)
    for first, count in ((0, 10), (10, 35), (39, 2), (45, 52)):
        np.testing.assert_allclose(plan.part(first, count), whole[first : first + count], rtol=1e-5)


def test_a_scan_is_read_as_it_was_written() -> None:
    written = scan([0, 4, 6], [1.0, 2.0, 3.0], 7, cuts=(4,), tones=(DARK, BRIGHT))
    read = SegmentStatistics.decode(written.encode())
    for name, value in vars(written).items():
        np.testing.assert_array_equal(getattr(read, name), value)


def write_scene(path: Path, frames: list[np.ndarray]) -> VideoReader:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=25)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "bgr0"
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="bgr0")))
        container.mux(stream.encode(None))
    return VideoReader(path)


@pytest.fixture(scope="module")
def stylizer(style_bundle: str) -> Stylizer:
    return Stylizer(read_bundle(style_bundle))


def test_what_stands_still_hardly_flickers_when_something_enters(tmp_path: Path, stylizer: Stylizer) -> None:
    random = np.random.default_rng(5)
    scene = random.integers(60, 120, (64, 96, 3), dtype=np.uint8)
    entered = scene.copy()
    entered[40:, :40] = 255
    reader = write_scene(tmp_path / "scene.mkv", [scene] * 30 + [entered] * 30)
    (segment,) = plan_segments(reader)
    style = stylizer.encode_style(random.integers(0, 255, (64, 64, 3), dtype=np.uint8))
    measured = measure_segment(reader, segment, stylizer.tiled, style, strength=1.0, advance=lambda _: None)
    assert not len(measured.cuts)
    plan = StylePlan([measured]).part(0, 60)
    steps: dict[str, float] = {}
    for name in ("own", "smoothed"):
        painted = []
        for number, frame in enumerate(reader.read_frames()):
            content = ArrayBands(read_whole(frame))
            known = plan[number] if name == "smoothed" else stylizer.tiled.measure(content, style)
            ((_, values),) = stylizer.tiled.paint_tiles(content, known)
            # Nothing moves in the upper half.
            painted.append(values[:, :24])
        steps[name] = max(float(np.abs(after - before).mean()) for before, after in pairwise(painted))
    assert steps["own"] > 1e-3
    assert steps["smoothed"] < steps["own"] / 5


def test_first_and_last_frames_of_shots_are_measured(tmp_path: Path, stylizer: Stylizer) -> None:
    reader = write_scene(tmp_path / "cut.mkv", [np.full((32, 32, 3), tone, np.uint8) for tone in [20] * 7 + [200] * 7])
    style = stylizer.encode_style(np.zeros((32, 32, 3), np.uint8))
    found = measure_segment(
        reader, Segment(0, None, None, 14), stylizer.tiled, style, strength=0.5, advance=lambda _: None
    )
    assert found.cuts.tolist() == [7]
    assert found.frames.tolist() == [0, 4, 6, 7, 8, 12, 13]
    assert found.num_frames == 14
