"""Whole films through `fusionray fuse-video`, with a bundle that inverts nothing but is quick."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as PillowImage

from fusionray.cli import main
from fusionray.faces.face import Image
from fusionray.runtime.crop_fuser import CropFuser, FusedCrops
from fusionray.runtime.pixels import FloatArray
from fusionray.safety.verify import verify
from fusionray.video.files.reader import VideoReader
from tests.support.pictures import draw_person
from tests.support.videos import list_kinds, needs_ffprobe, probe, read_packets, times_of
from tests.video.films import FRAMES, SIDE, film, show, to_frame

pytestmark = pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")


def see(path: Path | str) -> np.ndarray:
    """Read all frames as they are shown, [T,H,W,3]."""
    reader = VideoReader(Path(path))
    return np.stack([reader.see(frame, 10_000) for frame in reader.read_frames()])


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
    assert main(["fuse-video", source, target, str(output), "--bundle", bundle, "--quality", "10"]) == 0
    assert f"{FRAMES} faces in {FRAMES} of {FRAMES} frames" in capsys.readouterr().out
    before, after = see(target), see(output)
    assert before.shape == after.shape
    for number, (first, last) in enumerate(changed_columns(before, after)):
        # The head is in the middle of the person's picture, which moves by a pixel a frame.
        assert number + 20 < first < last < number + SIDE - 15
    assert times_of(output) == times_of(Path(target))
    assert read_packets(output, "audio") == read_packets(Path(target), "audio")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fused-report", "fused.mp4", "talk.mp4"]
    assert verify(output.read_bytes()).ai_made


def test_large_faces_are_boosted(tmp_path: Path, bundle: str, source: str) -> None:
    target, details = write_frames(tmp_path / "still.mkv", [draw_person(3, 640)] * 2, "ffv1"), []
    for boost in ("1", "4"):
        output = tmp_path / f"{boost}.mp4"
        options = ["--bundle", bundle, "--quality", "5", "--pixel-boost", boost]
        assert main(["fuse-video", source, str(target), str(output), *options]) == 0
        middle = see(output)[0, 250:400, 220:420].astype(np.float32)
        details.append(np.abs(np.diff(middle, axis=1)).mean())
    assert details[0] < 0.8 * details[1]


def test_faces_of_a_model_that_flickers_are_steadied_if_asked_for(
    tmp_path: Path, bundle: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = CropFuser.fuse

    def flicker(self: CropFuser, sources: FloatArray, crops: NDArray[np.uint8]) -> FusedCrops:
        """Make every other face of the batch, which has one of each frame, lighter by four levels."""
        made = plain(self, sources, crops)
        lighter = 4 * (np.arange(len(crops)) % 2)[:, None, None, None]
        return FusedCrops(np.clip(made.crops.astype(int) // 2 + 60 + lighter, 0, 255).astype(np.uint8), made.masks)

    monkeypatch.setattr(CropFuser, "fuse", flicker)
    target, shakes = film(tmp_path / "talk.mp4"), []
    for name, options in (("plain", []), ("steady", ["--steady-colours"])):
        output = tmp_path / f"{name}.mp4"
        assert main(["fuse-video", source, target, str(output), "--bundle", bundle, "--quality", "5", *options]) == 0
        middle = SIDE // 2 + np.arange(-8, 8)
        faces = [frame[middle][:, number + middle] for number, frame in enumerate(see(output))]
        shakes.append(np.abs(np.diff([face.mean() for face in faces], 2)).mean())
    assert shakes[0] > 4
    assert shakes[1] < 0.5 * shakes[0]


# A BT.2020 film in PQ, 10 bits, of a phone that was held upright; and an untagged one.
HDR: dict[str, Any] = {"pixel_format": "yuv420p10le", "tags": (9, 16, 9, 1), "rotation": 90}


@needs_ffprobe
@pytest.mark.parametrize("kind", [HDR, {}, {"pixel_format": "yuv444p", "tags": (1, 1, 1, 2), "rotation": 270}])
def test_tags_and_times_survive(tmp_path: Path, bundle: str, source: str, kind: dict[str, Any]) -> None:
    target, output = film(tmp_path / "talk.mp4", **kind), tmp_path / "fused.mp4"
    assert main(["fuse-video", source, target, str(output), "--bundle", bundle, "--quality", "5"]) == 0
    before, after = see(target), see(output)
    assert all(0 < first < last for first, last in changed_columns(before, after))
    kept = ("pix_fmt", "color_range", "color_space", "color_transfer", "color_primaries", "width", "height",
            "nb_frames", "start_time", "duration", "side_data_list")  # fmt: skip
    old, new = (probe(Path(path)) for path in (target, output))
    for name in kept:
        assert new["streams"][0].get(name) == old["streams"][0].get(name), name
    # One frame is shown for longer than the others.
    assert times_of(output) == times_of(Path(target))
    assert len({later - earlier for earlier, later in pairwise(times_of(output))}) == 2


def test_only_the_person_of_a_reference_is_changed(
    tmp_path: Path, bundle: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = film(tmp_path / "two.mp4", seeds=(4, 9))
    who = tmp_path / "who.png"
    cv2.imwrite(str(who), cv2.cvtColor(draw_person(4, 160), cv2.COLOR_RGB2BGR))
    assert main(["fuse-video", source, target, str(tmp_path / "all.mp4"), "--bundle", bundle, "--faces", "all"]) == 0
    before = see(target)
    both = changed_columns(before, see(tmp_path / "all.mp4"))
    assert all(first < SIDE < last for first, last in both)
    arguments = ["--who", str(who), "--who-similarity", "0.97", "--bundle", bundle]
    assert main(["fuse-video", source, target, str(tmp_path / "one.mp4"), *arguments]) == 0
    one = changed_columns(before, see(tmp_path / "one.mp4"))
    assert all(first == whole[0] and last < SIDE for (first, last), whole in zip(one, both, strict=True))
    arguments[3] = "1"
    assert main(["fuse-video", source, target, str(tmp_path / "none.mp4"), *arguments]) == 1
    assert "nobody has a similarity of 1 with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.mp4", "out.mp4"], "gone.mp4: there is no such file"),
        (["talk.mp4", "out.avi"], "must end in .mp4 or .mov"),
        (["empty.mp4", "out.mp4"], "no face found in the video"),
        (["talk.mp4", "talk.mp4"], "would replace the video that it is made of"),
        (["talk.mp4", "out.mp4", "--segment-seconds", "0"], "must be greater than 0"),
        (["text.mp4", "out.mp4"], "not a readable MP4"),
        (["talk.mp4", "out.mp4", "--encoder", "h266"], "the installed FFmpeg has no 'h266'"),
        (["talk.mp4", "out.mp4", "--encoder-option", "crf"], "write KEY=VALUE"),
        (["talk.mp4", "out.mp4", "--identity", "a.png"], "2 identities need 2 --who pictures"),
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


def write_pictures(path: Path) -> Path:
    """Write an animation of three people who walk, as GIF or WebP."""
    pictures = [PillowImage.fromarray(show(number)) for number in range(8)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=80, loop=0)
    return path


def write_odd(path: Path) -> Path:
    """Write frames of 319 x 191 pixels, whose chroma is halved nevertheless."""
    return write_frames(path, [show(number)[:191, :319] for number in range(6)], "ffv1")


def write_single(path: Path) -> Path:
    return write_frames(path, [show(0)], "libx264")


def write_interlaced(path: Path) -> Path:
    options = {"x264-params": "interlaced=1"}
    return write_frames(path, [show(number) for number in range(6)], "libx264", options)


def write_transparent(path: Path) -> Path:
    return write_frames(path, [show(number) for number in range(6)], "prores_ks", pixel_format="yuva444p10le")


def write_frames(
    path: Path, frames: list[Image], encoder: str, options: dict[str, str] | None = None, pixel_format: str = "yuv420p"
) -> Path:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(encoder, rate=25, options=options or {})
        context = stream.codec_context
        context.height, context.width = frames[0].shape[:2]
        context.pix_fmt, context.time_base = pixel_format, Fraction(1, 1000)
        for number, picture in enumerate(frames):
            frame = to_frame(np.ascontiguousarray(picture), pixel_format, (2, 2, 2, 0))
            frame.pts, frame.time_base = 40 * number, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("name", "make", "arguments", "count"),
    [
        ("a.gif", write_pictures, [], 8),
        ("a.webp", write_pictures, [], 8),
        ("a.mkv", write_odd, [], 6),
        ("a.mp4", write_single, [], 1),
        ("a.mov", write_interlaced, [], 6),
        ("a.mov", write_transparent, ["--encoder", "prores_ks"], 6),
        ("a.avi", write_interlaced, [], 6),
        ("a.mkv", write_single, ["--mark", "--encoder", "libx265"], 1),
    ],
)
def test_unusual_films_are_fused(
    tmp_path: Path, bundle: str, source: str, *, name: str, make: Any, arguments: list[str], count: int
) -> None:
    target, output = make(tmp_path / name), tmp_path / "fused.mov"
    assert main(["fuse-video", source, str(target), str(output), "--bundle", bundle, *arguments]) == 0
    before, after = see(target), see(output)
    assert len(after) == count
    assert before.shape == after.shape
    assert all(0 < first < last for first, last in changed_columns(before, after))
    # Players take times from the container: GIF counts in hundredths of a second.
    np.testing.assert_allclose(np.array(times_of(output), float), np.array(times_of(Path(target)), float))


def test_streams_are_left_out_and_faults_are_told(
    tmp_path: Path, bundle: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, output = Path(film(tmp_path / "talk.mp4", num_frames=40, key_frames=8)), tmp_path / "fused.mp4"
    with av.open(str(target)) as container:
        packets: list[Any] = [packet for packet in container.demux(video=0) if packet.size]
    data = bytearray(target.read_bytes())
    # A frame within a group of frames, without its first bytes.
    data[packets[20].pos : packets[20].pos + 40] = bytes(40)
    target.write_bytes(data)
    assert main(["fuse-video", source, str(target), str(output), "--bundle", bundle, "--leave-out", "audio"]) == 0
    assert list_kinds(output) == []
    assert "faults in the target; signed as AI-made" in capsys.readouterr().out
    figures = json.loads((tmp_path / "fused-report" / "figures.json").read_text())["figures"]
    assert figures["damaged"]["value"] >= 1
