"""Whole films through `fusionray fuse-video`, with a bundle that inverts nothing but is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from fusionray.cli import main
from fusionray.faces.face import Image
from fusionray.safety.verify import verify
from fusionray.video.reader import VideoReader
from fusionray.video.tracks import Track
from fusionray.video.upright import turn_points, turn_upright
from tests.support.pictures import draw_empty, draw_person
from tests.support.tiny_bundle import write_tiny_bundle
from tests.video.clips import MILLISECOND, read_packets, read_times

pytestmark = pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")

SIDE, WIDTH, HEIGHT = 160, 320, 192
FRAMES = 20


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_bundle(tmp_path_factory.mktemp("bundle")).folder)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("source") / "source.png"
    cv2.imwrite(str(path), cv2.cvtColor(draw_person(9, 160), cv2.COLOR_RGB2BGR))
    return str(path)


def show(number: int, seeds: tuple[int, ...] = (4,)) -> Image:
    """Show people who walk to the right, on a slope of colours."""
    frame = draw_empty(WIDTH, HEIGHT).copy()
    for place, seed in enumerate(seeds):
        left = 2 + number + place * (SIDE - 10)
        shown = draw_person(seed, SIDE)[:, : WIDTH - left]
        frame[16 : 16 + SIDE, left : left + shown.shape[1]] = shown
    return frame


def film(path: Path, *, rotation: int = 0, faces: bool = True, seeds: tuple[int, ...] = (4,)) -> str:
    """Write a film with a tone; `rotation` stores it turned, as a phone does."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"crf": "10"})
        upright = [show(number, seeds if faces else ()) for number in range(FRAMES)]
        stored = [np.ascontiguousarray(np.rot90(frame, -rotation // 90)) for frame in upright]
        context = stream.codec_context
        context.height, context.width = stored[0].shape[:2]
        context.pix_fmt, context.time_base = "yuv420p", MILLISECOND
        if rotation:
            stream.set_display_rotation(rotation)
        sound: Any = container.add_stream("aac", rate=48000)
        for number, picture in enumerate(stored):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
            # One frame is shown for longer.
            frame.pts, frame.time_base = 40 * number + (100 if number > 7 else 0), MILLISECOND
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        for number in range(40):
            tone = np.sin(np.arange(1024 * number, 1024 * (number + 1)) / 20)[None].astype(np.float32) * 0.3
            samples = av.AudioFrame.from_ndarray(tone, format="fltp", layout="mono")
            samples.sample_rate, samples.pts = 48000, 1024 * number
            container.mux(sound.encode(samples))
        container.mux(sound.encode())
    return str(path)


def read_upright(path: str) -> np.ndarray:
    with VideoReader(path) as reader:
        turn = reader.description.rotation
        return np.stack([turn_upright(frame.to_ndarray(format="rgb24"), turn) for frame in reader.frames()])


def changed_columns(before: np.ndarray, after: np.ndarray) -> list[tuple[int, int]]:
    """Return the first and last column of each frame that differ by more than the encoder does."""
    apart = np.abs(before.astype(int) - after).mean(axis=3)
    found = [np.flatnonzero((frame > 25).sum(axis=0) > 3) for frame in apart]
    return [(int(columns[0]), int(columns[-1])) if len(columns) else (-1, -1) for columns in found]


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_the_face_of_every_frame_is_fused_and_nothing_else_changes(
    tmp_path: Path, bundle: str, source: str, rotation: int, capsys: pytest.CaptureFixture[str]
) -> None:
    target, output = film(tmp_path / "talk.mp4", rotation=rotation), tmp_path / "fused.mp4"
    assert main(["fuse-video", source, target, str(output), "--bundle", bundle, "--encoder-option", "crf=10"]) == 0
    assert f"{FRAMES} faces in {FRAMES} frames" in capsys.readouterr().out
    before, after = read_upright(target), read_upright(str(output))
    assert before.shape == after.shape
    for number, (first, last) in enumerate(changed_columns(before, after)):
        # The head is in the middle of the person's picture, which moves by a pixel a frame.
        assert number + 20 < first < last < number + SIDE - 15
    assert read_times(output) == read_times(Path(target))
    assert read_packets(output, "audio") == read_packets(Path(target), "audio")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fused.mp4", "talk.mp4"]
    assert verify(output.read_bytes()).ai_made


def test_only_the_person_of_a_reference_is_changed(
    tmp_path: Path, bundle: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = film(tmp_path / "two.mp4", seeds=(4, 9))
    who = tmp_path / "who.png"
    cv2.imwrite(str(who), cv2.cvtColor(draw_person(4, 160), cv2.COLOR_RGB2BGR))
    assert main(["fuse-video", source, target, str(tmp_path / "all.mp4"), "--bundle", bundle, "--faces", "all"]) == 0
    before = read_upright(target)
    both = changed_columns(before, read_upright(str(tmp_path / "all.mp4")))
    assert all(first < SIDE < last for first, last in both)
    arguments = ["--who", str(who), "--who-similarity", "0.97", "--bundle", bundle]
    assert main(["fuse-video", source, target, str(tmp_path / "one.mp4"), *arguments]) == 0
    one = changed_columns(before, read_upright(str(tmp_path / "one.mp4")))
    assert all(first == whole[0] and last < SIDE for (first, last), whole in zip(one, both, strict=True))
    arguments[3] = "1"
    assert main(["fuse-video", source, target, str(tmp_path / "none.mp4"), *arguments]) == 1
    assert "nobody has a similarity of 1 with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.mp4", "out.mp4"], "gone.mp4: no such video file"),
        (["talk.mp4", "out.avi"], "must end in .mp4 or .mov"),
        (["empty.mp4", "out.mp4"], "no face found in the video"),
        (["text.mp4", "out.mp4"], "is not a video"),
        (["talk.mp4", "out.mp4", "--encoder", "h266"], "no such encoder"),
        (["talk.mp4", "out.mp4", "--encoder-option", "crf"], "write KEY=VALUE"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_no_file(
    tmp_path: Path, bundle: str, source: str, capsys: pytest.CaptureFixture[str], *, arguments: list[str], words: str
) -> None:
    film(tmp_path / "talk.mp4")
    film(tmp_path / "empty.mp4", faces=False)
    (tmp_path / "text.mp4").write_text("no video")
    places = [str(tmp_path / arguments[0]), str(tmp_path / arguments[1]), *arguments[2:]]
    assert main(["fuse-video", source, *places, "--bundle", bundle]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusionray fuse-video: ")]
    assert words in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.mp4", "talk.mp4", "text.mp4"]


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_points_of_an_upright_picture_are_turned_back(rotation: int) -> None:
    stored = np.zeros((30, 50, 3), np.uint8)
    stored[4, 9] = 255
    upright = turn_upright(stored, rotation)
    (y,), (x,) = np.nonzero(upright[..., 0])
    points = np.full((1, 5, 2), (x, y), np.float32)
    box = np.array([[x, y, 1, 1]], np.float32)
    track = Track(np.array([0]), points, box, np.ones(1, bool))
    turned = turn_points(track, rotation, (50, 30))
    np.testing.assert_array_equal(turned.landmarks[0], np.full((5, 2), (9, 4)))
