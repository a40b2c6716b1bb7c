"""Whole films through `fusionray stylize`."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest

from fusionray.bundle.bundle import read_bundle
from fusionray.cli import main
from fusionray.faces.image_files.decode import decode_image
from fusionray.runtime.style_transfer.stylizer import Stylizer
from fusionray.safety.verify import verify
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.reader import VideoReader
from fusionray.video.segments import plan_segments
from fusionray.video.style_transfer.work import StyleTask, StyleWorker
from tests.support.videos import read_packets, times_of
from tests.video.face_fusion.test_fusing import see, write_pictures
from tests.video.films import FRAMES, film
from tests.video.test_resume import figure, film_hash, kill_once

pytestmark = pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")


@pytest.mark.parametrize("rotation", [0, 90])
def test_every_frame_is_painted_and_all_else_stays(
    tmp_path: Path, style_bundle: str, style: str, rotation: int, capsys: pytest.CaptureFixture[str]
) -> None:
    content, output = film(tmp_path / "walk.mp4", rotation=rotation), tmp_path / "painted.mp4"
    assert main(["stylize", content, style, str(output), "--bundle", style_bundle, "--quality", "5"]) == 0
    assert f"painted.mp4: {FRAMES} frames, painted in 1 style(s) with" in capsys.readouterr().out
    before, after = see(content), see(output)
    assert before.shape == after.shape
    stylizer = Stylizer(read_bundle(style_bundle))
    painted = [stylizer.stylize(frame, [decode_image(Path(style).read_bytes())]) for frame in before]
    if not rotation:
        # Strokes of a turned frame are painted as it is stored.
        apart = np.abs(np.stack(painted).astype(int) - after)
        assert apart.mean() < 0.3 * np.abs(before.astype(int) - after).mean()
    assert times_of(output) == times_of(Path(content))
    assert read_packets(output, "audio") == read_packets(Path(content), "audio")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["painted-report", "painted.mp4", "walk.mp4"]
    assert verify(output.read_bytes()).ai_made
    figures = json.loads((tmp_path / "painted-report" / "figures.json").read_text())["figures"]
    assert figures["frames"]["value"] == FRAMES
    assert figures["frames_measured"]["value"] == FRAMES // 4 + 1
    assert figures["shots"]["value"] == 1


def test_a_killed_run_goes_on_and_makes_the_same_film(tmp_path: Path, style_bundle: str, style: str) -> None:
    content = film(tmp_path / "walk.mp4", num_frames=40, key_frames=8)
    whole, killed = tmp_path / "whole.mp4", tmp_path / "killed.mp4"

    def command(output: Path) -> list[str]:
        return ["stylize", content, style, str(output), "--bundle", style_bundle, "--segment-seconds", "0.3"]

    assert main(command(whole)) == 0
    assert figure(whole, "segments") == 5
    work = tmp_path / ".killed.mp4.work"
    for file in (work / "scan-00001.npz", work / "segment-00001.mp4"):
        kill_once(command(killed), file)
        assert not killed.exists()
    assert main(command(killed)) == 0
    assert figure(killed, "frames_resumed") >= 8
    assert film_hash(killed) == film_hash(whole)
    # Another strength is another film.
    assert main([*command(killed), "--strength", "0.5"]) == 0
    assert film_hash(killed) != film_hash(whole)


@pytest.mark.parametrize("name", ["a.gif", "a.webp"])
def test_an_animation_becomes_a_film(tmp_path: Path, style_bundle: str, style: str, name: str) -> None:
    content, output = write_pictures(tmp_path / name), tmp_path / "painted.mov"
    assert main(["stylize", str(content), style, str(output), "--bundle", style_bundle, "--mark"]) == 0
    assert see(output).shape == see(content).shape


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["walk.mp4", "out.png"], "out.png: the name of the result must end in .mp4 or .mov"),
        (["walk.mp4", "walk.mp4"], "would replace the video that it is made of"),
        (["walk.mp4", "out.mp4", "--segment-seconds", "0"], "must be greater than 0"),
        (["walk.mp4", "out.mp4", "--strength", "2"], "strength 2: give a number from 0"),
        (["gone.mp4", "out.mp4"], "gone.mp4: there is no such file"),
        (["text.mp4", "out.mp4"], "not a readable MP4"),
        (["picture.png", "out.mp4"], "picture.png"),
    ],
)
def test_what_cannot_be_painted_is_one_line_and_leaves_no_file(
    tmp_path: Path,
    style_bundle: str,
    style: str,
    capsys: pytest.CaptureFixture[str],
    *,
    arguments: list[str],
    words: str,
) -> None:
    film(tmp_path / "walk.mp4", num_frames=4)
    (tmp_path / "text.mp4").write_text("no video")
    cv2.imwrite(str(tmp_path / "picture.png"), np.zeros((32, 32, 3), np.uint8))
    names = sorted(path.name for path in tmp_path.iterdir())
    content, output, *options = arguments
    places = [str(tmp_path / content), style, str(tmp_path / output)]
    assert main(["stylize", *places, "--bundle", style_bundle, *options]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusionray stylize: ")]
    assert words in line
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_task_opens_its_worker_where_it_arrives(tmp_path: Path, style_bundle: str) -> None:
    content = Path(film(tmp_path / "walk.mp4", num_frames=4))
    stylizer = Stylizer(read_bundle(style_bundle))
    style = stylizer.encode_style(np.zeros((32, 32, 3), np.uint8))
    task = StyleTask(content, ".mp4", style_bundle, None, style, 1.0, encoder=EncoderSettings(), threads=1)
    worker = pickle.loads(pickle.dumps(task)).open_worker()
    assert isinstance(worker, StyleWorker)
    (segment,) = plan_segments(VideoReader(content))
    assert worker.scan(segment, lambda _: None).num_frames == 4
