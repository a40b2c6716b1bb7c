"""The visible mark is upright in the corner of what a player shows, however the frames are stored."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from fusionray.safety.mark import Mark, MarkConfig
from fusionray.video.files.describing import describe_video
from fusionray.video.files.reader import VideoReader
from fusionray.video.frame_mark import FrameMark
from tests.support.videos import write_video


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("aspect", [Fraction(1), Fraction(4, 3)])
def test_a_mark_is_where_it_would_be_on_a_picture(tmp_path: Path, rotation: int, aspect: Fraction) -> None:
    path = write_video(tmp_path / "a.mp4", size=(192, 160), rotation=rotation, sample_aspect=aspect)
    mark = Mark(MarkConfig(enabled=True, share=0.2))
    reader = VideoReader(path)
    described = reader.description
    drawer = FrameMark(mark, described)
    frame = next(reader.read_frames())

    def see() -> np.ndarray:
        return reader.see(frame, 1000)

    before = see()
    drawer.draw(frame)
    difference = np.abs(see().astype(int) - mark.draw(before)).mean(axis=2)
    # Chroma is stored at half the resolution.
    assert difference.mean() < 1.5
    assert np.abs(see().astype(int) - before).max() > 60
    changed = np.abs(see().astype(int) - before).max(axis=2) > 40
    rows, columns = np.nonzero(changed)
    assert rows.min() > before.shape[0] / 2
    assert columns.min() > before.shape[1] / 2
    assert cv2.countNonZero(changed.astype(np.uint8)) > 100


def test_a_frame_too_small_for_a_mark_stays_as_it_is(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    described = replace(describe_video(path), width=12, height=12)
    assert not FrameMark(Mark(MarkConfig(enabled=True)), described).is_drawn
