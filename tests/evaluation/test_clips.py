from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from fusionray.data import synthetic
from fusionray.errors import InputMissing, VideoRejected
from fusionray.evaluation.clips import MOVING, RecordedClip, RenderedClip, read_frames
from fusionray.faces.align import load_template
from tests.evaluation.materials import draw_frames, write_pictures

TEMPLATE = load_template("arcface_128")


def build_clip(frames: int = 5) -> RenderedClip:
    people, looks = synthetic.sample_identities(2, seed=3).numpy(), synthetic.sample_attributes(2, seed=5).numpy()
    return RenderedClip("clip", people[0], people[1], looks[0], looks[1], frames)


def test_a_rendered_head_moves_and_nothing_else_changes() -> None:
    clip = build_clip()
    attributes = clip.interpolate_attributes()
    still = [index for index, name in enumerate(synthetic.ATTRIBUTE_NAMES) if name not in MOVING]
    assert (attributes[:, still] == torch.from_numpy(clip.start)[still]).all()
    yaw = attributes[:, synthetic.ATTRIBUTE_NAMES.index("yaw")]
    assert yaw[0] == clip.start[synthetic.ATTRIBUTE_NAMES.index("yaw")]
    assert yaw[-1] == pytest.approx(clip.end[synthetic.ATTRIBUTE_NAMES.index("yaw")])
    assert (yaw.diff().sign() == yaw.diff().sign()[0]).all()


def test_the_true_fusion_of_a_clip_shows_the_source_as_the_target_moves() -> None:
    clip = build_clip()
    frames = clip.load(TEMPLATE, 32)
    assert frames.truth is not None
    assert frames.target.shape == frames.truth.shape == (5, 3, 32, 32)
    same = RenderedClip("same", clip.target_identity, clip.target_identity, clip.start, clip.end, 5)
    again = same.load(TEMPLATE, 32)
    assert again.truth is not None
    assert torch.equal(again.truth, frames.target)
    assert (frames.truth.float() - frames.target.float()).abs().mean(dim=(1, 2, 3)).min() > 5


@pytest.mark.parametrize("kind", ["folder", "video"])
def test_recorded_frames_are_aligned_by_the_face_that_they_show(tmp_path: Path, kind: str) -> None:
    drawn = draw_frames(4)
    if kind == "folder":
        path = write_pictures(tmp_path / "frames", [*drawn, np.zeros((192, 192, 3), np.uint8)])
    else:
        path = tmp_path / "clip.avi"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (192, 192))
        for frame in drawn:
            writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        writer.release()
    frames = RecordedClip("clip", str(path), 16).load(TEMPLATE, 64)
    assert frames.target.shape == (4, 3, 64, 64)  # the empty frame shows nobody
    assert frames.truth is None
    assert RecordedClip("clip", str(path), 3).load(TEMPLATE, 64).target.shape[0] == 3


def test_colours_of_recorded_frames_are_red_green_blue(tmp_path: Path) -> None:
    red = np.zeros((16, 16, 3), np.uint8)
    red[..., 0] = 200
    (frame,) = read_frames(write_pictures(tmp_path / "frames", [red]))
    assert (frame == red).all()


def test_clips_without_a_face_and_unreadable_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "words.mp4").write_text("words")
    write_pictures(tmp_path / "grey", [np.full((64, 64, 3), 90, np.uint8)] * 3)
    for name, words in (
        ("grey", "shows a face in 0 frames"),
        ("words.mp4", "not a readable MP4"),
        ("none", "no such video"),
    ):
        with pytest.raises((InputMissing, VideoRejected), match=words) as refusal:
            RecordedClip(name, str(tmp_path / name), 4).load(TEMPLATE, 32)
        assert "\n" not in str(refusal.value)
