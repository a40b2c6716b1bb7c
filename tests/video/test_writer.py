"""A video that is read and written again is the same but for its pictures: times, sound, tags, names."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from fusionray.errors import InputMissing, VideoRejected
from fusionray.video.planes import FramePlanes
from fusionray.video.reader import VideoReader
from fusionray.video.writer import VideoWriter
from tests.support.child_python import ROOT
from tests.video.clips import HEIGHT, TIMES, WIDTH, read_packets, read_times, write_clip


def rewrite(source: Path, target: Path, **options: Any) -> Path:
    with VideoReader(source) as reader, VideoWriter(target, reader, **options) as writer:
        for frame in reader.frames():
            writer.write(frame)
    return target


def read_planes(path: Path) -> list[np.ndarray]:
    """Return the values of all planes of each frame."""
    with VideoReader(path) as reader:
        space = reader.description.space
        planes = [FramePlanes.of(frame, space) for frame in reader.frames()]
        return [np.concatenate([each.luma.ravel(), *(plane.ravel() for plane in each.chroma)]) for each in planes]


@pytest.mark.parametrize("times", [(0, 40, 80, 90, 300, 1000), (500, 540, 580), (0,), tuple(range(0, 1000, 33))])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_every_frame_is_shown_when_it_was(tmp_path: Path, times: tuple[int, ...], suffix: str) -> None:
    source = write_clip(tmp_path / f"source{suffix}", times=times)
    written = rewrite(source, tmp_path / f"written{suffix}")
    assert len(read_times(source)) == len(times)
    np.testing.assert_allclose(read_times(written), read_times(source), atol=1e-6)


def test_sound_is_copied_byte_for_byte(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "source.mp4", with_sound=True)
    written = rewrite(source, tmp_path / "written.mp4")
    assert read_packets(written, "audio") == read_packets(source, "audio")
    assert len(read_packets(source, "audio")) >= 12


def test_rotation_shape_of_pixels_names_and_chapters_stay(tmp_path: Path) -> None:
    chapters = [
        {"id": number, "start": 100 * number, "end": 100 * number + 100, "time_base": Fraction(1, 1000),
         "metadata": {"title": f"part {number}"}}
        for number in range(2)
    ]  # fmt: skip

    def describe(container: Any, stream: Any) -> None:
        container.metadata["title"] = "a test"
        stream.metadata["language"] = "deu"
        container.set_chapters(chapters)

    source = write_clip(
        tmp_path / "source.mp4", rotation=90, sample_aspect=Fraction(4, 3), describe=describe, with_sound=True
    )
    written = rewrite(source, tmp_path / "written.mp4")
    with VideoReader(written) as reader:
        assert reader.description.rotation == 90
        assert reader.description.sample_aspect == Fraction(4, 3)
        assert reader.container.metadata["title"] == "a test"
        assert reader.stream.metadata["language"] == "deu"
        found = reader.container.chapters()
        assert [(each["start"] * each["time_base"], each["metadata"]["title"]) for each in found] == [
            (0, "part 0"),
            (Fraction(1, 10), "part 1"),
        ]


@pytest.mark.parametrize(
    ("pixel_format", "colour"),
    [
        ("yuv420p", (1, 1, 1, 1)),  # BT.709, limited
        ("yuv420p10le", (9, 16, 9, 1)),  # BT.2020, PQ
        ("yuv422p10le", (9, 18, 9, 1)),  # BT.2020, HLG
        ("yuv444p", (1, 13, 1, 2)),  # sRGB, full range
    ],
)
def test_bits_resolution_and_tags_of_colour_stay(
    tmp_path: Path, pixel_format: str, colour: tuple[int, int, int, int]
) -> None:
    source = write_clip(tmp_path / "source.mkv", pixel_format=pixel_format, colour=colour)
    with VideoReader(rewrite(source, tmp_path / "written.mkv")) as reader:
        # FFmpeg has a name of its own for full range.
        assert reader.description.pixel_format.replace("yuvj", "yuv") == pixel_format
        assert reader.description.colour == colour


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le"])
@pytest.mark.parametrize("size", [(WIDTH, HEIGHT), (95, 63)])
def test_frames_that_nobody_edits_reach_the_encoder_as_they_were(
    tmp_path: Path, pixel_format: str, size: tuple[int, int]
) -> None:
    source = write_clip(tmp_path / "source.mkv", pixel_format=pixel_format, size=size, encoder="ffv1")
    written = rewrite(source, tmp_path / "written.mkv", encoder="ffv1")
    for before, after in zip(read_planes(source), read_planes(written), strict=True):
        assert np.array_equal(before, after)


def test_an_edited_frame_does_not_change_those_that_were_decoded_from_it(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "source.mp4", times=TIMES)
    expected = read_planes(source)
    with VideoReader(source) as reader:
        for frame, before in zip(reader.frames(), expected, strict=True):
            planes = FramePlanes.of(frame, reader.description.space)
            assert np.array_equal(planes.luma.ravel(), before[: planes.luma.size])
            planes.luma[...] = 0


def test_an_animated_gif_is_a_video_too(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "source.gif", encoder="gif", pixel_format="rgb8")
    with VideoReader(source) as reader:
        assert reader.description.frame_format == "yuv444p"
        frames = list(reader.frames())
    assert len(frames) == len(TIMES)
    assert {frame.format.name for frame in frames} == {"yuv444p"}


def damage(path: Path, kind: str) -> Path:
    """Make a file that is not what its name says."""
    if kind == "text":
        path.write_text("this is no video\n" * 100)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(write_clip(path).read_bytes()[:300])
    elif kind == "animated WebP":
        write_clip(path.with_suffix(".webp"), encoder="libwebp_anim", pixel_format="yuva420p").rename(path)
    elif kind == "sound alone":
        with av.open(str(path), "w") as container:
            sound: Any = container.add_stream("aac", rate=48000)
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            samples.sample_rate = 48000
            container.mux(sound.encode(samples))
            container.mux(sound.encode())
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("text", "is not a video"),
        ("empty", "is not a video"),
        ("truncated", "is not a video"),
        ("sound alone", "no video stream"),
        ("animated WebP", "cannot decode it"),
    ],
)
def test_a_file_that_is_no_video_is_refused_in_one_line(tmp_path: Path, kind: str, words: str) -> None:
    with pytest.raises(VideoRejected, match=words) as refused:
        VideoReader(damage(tmp_path / "bad.mp4", kind))
    assert "\n" not in str(refused.value)


def test_missing_and_too_large_videos_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match=r"gone\.mp4: no such video"):
        VideoReader(tmp_path / "gone.mp4")
    with pytest.raises(VideoRejected, match="96 x 64 pixels; 1000 pixels are the limit"):
        VideoReader(write_clip(tmp_path / "large.mp4"), max_pixels=1000)


def test_damaged_packets_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "source.mkv", times=tuple(range(0, 2000, 40)), encoder="ffv1")
    packets = read_packets(source, "video")
    data = bytearray(source.read_bytes())
    for _, packet in itertools.islice(packets, 10, 13):
        start = data.find(packet)
        data[start + 8 : start + len(packet)] = bytes(len(packet) - 8)
    source.write_bytes(data)
    with VideoReader(source) as reader:
        frames = list(reader.frames())
        assert reader.num_damaged >= 3
        # FFV1 decodes the next ones after a key frame, of which it makes one in twelve.
        assert len(frames) >= 50 - 3 - 12


@pytest.mark.parametrize(
    ("options", "suffix", "words"),
    [
        ({"encoder": "h266"}, ".mp4", "h266: FFmpeg has no such encoder"),
        ({"encoder": "prores_ks"}, ".mov", "prores_ks: cannot encode yuv420p"),
        ({"options": {"crf": "many"}}, ".mp4", "cannot be written"),
        ({}, ".avi7", "cannot be written"),
    ],
)
def test_what_cannot_be_written_leaves_no_file(
    tmp_path: Path, options: dict[str, Any], suffix: str, words: str
) -> None:
    source = write_clip(tmp_path / "source.mp4", with_sound=True)
    with pytest.raises(VideoRejected, match=words):
        rewrite(source, tmp_path / f"written{suffix}", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["source.mp4"]


def test_an_error_while_writing_leaves_no_file_and_an_older_one_alone(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "source.mp4")
    target = tmp_path / "written.mp4"
    target.write_bytes(b"older")

    def fail(writer: VideoWriter, reader: VideoReader) -> None:
        with writer:
            writer.write(next(reader.frames()))
            raise KeyError

    with VideoReader(source) as reader, pytest.raises(KeyError):
        fail(VideoWriter(target, reader), reader)
    assert target.read_bytes() == b"older"
    assert len(list(tmp_path.iterdir())) == 2


KILLED = """
import sys, time
from fusionray.video.reader import VideoReader
from fusionray.video.writer import VideoWriter
with VideoReader(sys.argv[1]) as reader, VideoWriter(sys.argv[2], reader) as writer:
    for frame in reader.frames():
        writer.write(frame)
    print("written", flush=True)
    time.sleep(60)
"""


def test_a_killed_writer_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    source, target = write_clip(tmp_path / "source.mp4"), tmp_path / "written.mp4"
    command = [sys.executable, "-c", KILLED, str(source), str(target)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/platform"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGKILL)
    assert not target.exists()
