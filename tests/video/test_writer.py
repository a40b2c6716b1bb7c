from __future__ import annotations

import io
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
from PIL import Image as PillowImage

from fusionray.errors import VideoNotWritten
from fusionray.video.files.describing import describe_video
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.reader import VideoReader
from fusionray.video.files.writer import VideoWriter
from tests.support.child_python import ROOT
from tests.support.videos import (
    STEADY,
    TIME_BASE,
    list_kinds,
    read_packets,
    rewrite,
    times_of,
    write_video,
)

VARIABLE = (0, 512, 700, 2000, 2001, 2600, 7000, 7512, 9000)


def write_twice(writer: VideoWriter, frame: av.VideoFrame) -> None:
    writer.write(frame)
    writer.write(frame)


@pytest.mark.parametrize("encoder", ["libx264", "libx265", "libsvtav1"])
@pytest.mark.parametrize("offset", [0, 19_001])
def test_every_frame_keeps_its_time(tmp_path: Path, encoder: str, offset: int) -> None:
    # Written by hand of the exact scale: other writers round the offset of the source.
    source = write_video(tmp_path / "a.mkv", [time + offset for time in VARIABLE], time_base=Fraction(1, 1000))
    target = rewrite(
        source, tmp_path / "b.mp4", EncoderSettings(encoder, preset="8" if "svt" in encoder else "ultrafast")
    )
    assert times_of(target) == [Fraction(time + offset, 1000) for time in VARIABLE]
    again = rewrite(target, tmp_path / "c.mp4")
    assert times_of(again) == times_of(target)


@pytest.mark.parametrize(
    "time_base", [Fraction(1, 12800), Fraction(1001, 30000), Fraction(1, 90000), Fraction(1, 1_000_000)]
)
def test_no_time_base_rounds_times(tmp_path: Path, time_base: Fraction) -> None:
    times = tuple(range(12)) if time_base.numerator > 1 else tuple(index * 3001 + 77 for index in range(12))
    source = write_video(tmp_path / "a.mov", times, time_base=time_base)
    assert times_of(rewrite(source, tmp_path / "b.mov")) == times_of(source)


def test_the_last_frame_keeps_its_duration(tmp_path: Path) -> None:
    source = tmp_path / "a.gif"
    pictures = [PillowImage.fromarray(np.full((32, 48, 3), level, np.uint8)) for level in (20, 120)]
    pictures[0].save(source, save_all=True, append_images=pictures[1:], duration=[40, 900])
    target = describe_video(rewrite(source, tmp_path / "b.mp4"))
    assert target.duration_seconds == Fraction(94, 100)
    assert target.pixel_format == "yuv420p"


def test_packets_of_sound_are_copied_byte_for_byte(tmp_path: Path) -> None:
    source = write_video(tmp_path / "a.mp4", sound=True)
    packets = read_packets(source, "audio")
    assert len(packets) > 20
    for name in ("b.mp4", "b.mov"):
        assert read_packets(rewrite(source, tmp_path / name), "audio") == packets
    in_mkv = read_packets(rewrite(source, tmp_path / "b.mkv"), "audio")
    assert [data for data, _ in in_mkv] == [data for data, _ in packets]
    # Matroska counts in thousandths.
    assert all(abs(old - new) <= Fraction(1, 1000) for (_, old), (_, new) in zip(packets, in_mkv, strict=True))


def test_sound_and_pictures_are_interleaved(tmp_path: Path) -> None:
    source = write_video(tmp_path / "a.mp4", tuple(range(0, 60 * 512, 512)), sound=True)
    with av.open(str(rewrite(source, tmp_path / "b.mkv"))) as target:
        times = [float(p.dts * p.time_base) for p in target.demux() if p.dts is not None]
    assert max(earlier - later for earlier, later in itertools.pairwise(times)) < 0.2


def write_rich(path: Path) -> Path:
    """Write a Matroska file with subtitles and an attachment."""
    video = write_video(path.with_name("plain.mkv"), time_base=Fraction(1, 1000), chapters=True, sound=True,
                        metadata={"title": "Ein Film", "comment": "für alle"})  # fmt: skip
    with av.open(str(video)) as old, av.open(str(path), "w") as new:
        new.metadata.update({"title": "Ein Film", "comment": "für alle"})
        new.set_chapters(old.chapters())
        copies = {stream.index: new.add_stream_from_template(stream, opaque=True) for stream in old.streams}
        copies[1].metadata.update(old.streams[1].metadata)
        copies[0].metadata["title"] = "Pictures"
        subtitles = new.add_mux_stream("subrip")
        subtitles.metadata["language"] = "fra"
        subtitles.disposition = av.stream.Disposition.forced
        new.add_attachment("font.ttf", "font/ttf", b"no real font")
        for number, text in enumerate((b"Bonjour", b"Au revoir")):
            packet = av.Packet(text)
            packet.stream, packet.time_base = subtitles, Fraction(1, 1000)
            packet.pts = packet.dts = number * 2000
            packet.duration = 1000
            new.mux(packet)
        for packet in old.demux():
            if packet.dts is not None:
                packet.stream = copies[packet.stream.index]
                new.mux(packet)
    return path


def chapters_of(container: Any) -> list[Any]:
    return list(container.chapters())


def test_subtitles_attachments_chapters_and_metadata_are_copied(tmp_path: Path) -> None:
    source = write_rich(tmp_path / "a.mkv")
    target = rewrite(source, tmp_path / "b.mkv")
    assert [data for data, _ in read_packets(target, "subtitle")] == [b"Bonjour", b"Au revoir"]
    assert read_packets(target, "audio") == read_packets(source, "audio")
    with av.open(str(source)) as old, av.open(str(target)) as new:
        assert [stream.type for stream in new.streams] == [stream.type for stream in old.streams]
        assert [stream.language for stream in new.streams] == [stream.language for stream in old.streams]
        assert [stream.disposition for stream in new.streams] == [stream.disposition for stream in old.streams]
        assert new.streams[0].metadata["title"] == "Pictures"
        assert new.streams.attachments[0].data == b"no real font"
        assert (new.metadata["title"], new.metadata["COMMENT"]) == ("Ein Film", "für alle")
        assert [(c["start"] * c["time_base"], c["metadata"]) for c in chapters_of(new)] == [
            (c["start"] * c["time_base"], c["metadata"]) for c in chapters_of(old)
        ]
        assert len(new.chapters()) == 2


def test_chapters_of_mp4_appear_once_however_often_it_is_rewritten(tmp_path: Path) -> None:
    # Its muxer writes them as a stream of text, which is no stream to copy.
    source = write_video(tmp_path / "a.mp4", chapters=True)
    target = rewrite(rewrite(source, tmp_path / "b.mp4"), tmp_path / "c.mp4")
    assert list_kinds(target) == ["data"]
    with av.open(str(target)) as video:
        assert [chapter["metadata"]["title"] for chapter in video.chapters()] == ["First", "First"]


def test_a_cover_picture_is_copied_and_is_not_the_video(tmp_path: Path) -> None:
    plain, source = write_video(tmp_path / "plain.mp4"), tmp_path / "a.mp4"
    png = io.BytesIO()
    PillowImage.new("RGB", (40, 40), "red").save(png, "png")
    with av.open(str(plain)) as old, av.open(str(source), "w") as new:
        cover = new.add_mux_stream("png", width=40, height=40)
        cover.disposition = av.stream.Disposition.attached_pic
        copy = new.add_stream_from_template(old.streams.video[0], opaque=True)
        packet: Any = av.Packet(png.getvalue())
        packet.stream, packet.pts, packet.dts, packet.is_keyframe = cover, 0, 0, True
        new.mux(packet)
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = copy
                new.mux(packet)
    with av.open(str(rewrite(source, tmp_path / "b.mp4"))) as video:
        covers = [stream for stream in video.streams.video if stream.disposition & av.stream.Disposition.attached_pic]
        assert [bytes(packet) for packet in video.demux(covers) if packet.size] == [png.getvalue()]
    assert describe_video(tmp_path / "b.mp4").width == 96


def test_streams_can_be_left_out(tmp_path: Path) -> None:
    source = write_rich(tmp_path / "a.mkv")
    assert list_kinds(rewrite(source, tmp_path / "b.mkv", leave_out=("subtitle", "attachment"))) == ["audio"]


@pytest.mark.parametrize(
    ("name", "settings", "pixel_format", "message"),
    [
        ("b.xyz", EncoderSettings(), "yuv420p", r"\.xyz is no container"),
        ("b.webm", EncoderSettings(), "yuv420p", "webm cannot hold video of libx264"),
        ("b.mp4", EncoderSettings("libnone"), "yuv420p", "the installed FFmpeg has no 'libnone'"),
        ("b.mp4", EncoderSettings("aac"), "yuv420p", "'aac' does not encode video"),
        ("b.mkv", EncoderSettings(), "yuva420p", "libx264 cannot keep the pixel format yuva420p"),
        ("b.mkv", EncoderSettings("prores_ks", quality=4), "yuv422p10le", "prores_ks has no such setting"),
        ("none/b.mkv", EncoderSettings(), "yuv420p", "make it first"),
    ],
)
def test_what_cannot_be_written_is_one_clear_error_and_no_file(
    tmp_path: Path, name: str, settings: EncoderSettings, pixel_format: str, message: str
) -> None:
    source = write_video(
        tmp_path / "a.mkv", encoder="ffv1", pixel_format=pixel_format, time_base=Fraction(1, 1000), options={}
    )
    with pytest.raises(VideoNotWritten, match=message) as raised:
        rewrite(source, tmp_path / name, settings)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mkv"]


def test_a_stream_that_the_container_refuses_is_named(tmp_path: Path) -> None:
    source = write_rich(tmp_path / "a.mkv")
    with pytest.raises(VideoNotWritten, match=r"mp4 cannot hold stream 2 .*subtitle.*leave out subtitle"):
        rewrite(source, tmp_path / "b.mp4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mkv", "plain.mkv"]
    target = rewrite(source, tmp_path / "b.mp4", leave_out=("subtitle", "attachment"))
    assert [kind for kind in list_kinds(target) if kind != "data"] == ["audio"]


def test_an_error_within_leaves_the_old_file_as_it_was(tmp_path: Path) -> None:
    source, target = write_video(tmp_path / "a.mp4"), tmp_path / "b.mp4"
    target.write_bytes(b"an older video")
    frame = next(VideoReader(source).read_frames())
    with pytest.raises(ValueError, match="is not after"), VideoWriter(target, describe_video(source), source) as writer:
        write_twice(writer, frame)
    assert target.read_bytes() == b"an older video"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]


def test_a_video_without_frames_is_no_video(tmp_path: Path) -> None:
    source = write_video(tmp_path / "a.mp4")
    with (
        pytest.raises(VideoNotWritten, match="no frame was written"),
        VideoWriter(tmp_path / "b.mp4", describe_video(source), source),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_frames_that_do_not_follow_are_refused(tmp_path: Path) -> None:
    source = write_video(tmp_path / "a.mp4")
    frames = list(VideoReader(source).read_frames())
    with VideoWriter(tmp_path / "b.mp4", describe_video(source), source) as writer:
        writer.write(frames[1])
        with pytest.raises(ValueError, match="is not after"):
            writer.write(frames[0])
        other = frames[2].reformat(width=48, height=32)
        with pytest.raises(ValueError, match="48 x 32 yuv420p differs from the video's 96 x 64"):
            writer.write(other)


def test_a_killed_writer_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    source, target = write_video(tmp_path / "a.mp4", tuple(range(0, 40 * 512, 512))), tmp_path / "b.mp4"
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from fusionray.video.files.reader import VideoReader\nfrom fusionray.video.files.writer import VideoWriter\n"
        "reader = VideoReader(Path(sys.argv[1]))\n"
        "writer = VideoWriter(Path(sys.argv[2]), reader.description, reader.path)\n"
        "for frame in reader.read_frames(): writer.write(frame)\n"
        "print('written', flush=True)\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(source), str(target)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert not target.exists()
    assert all(path.name == "a.mp4" or path.name.startswith(".b.") for path in tmp_path.iterdir())


def test_a_segment_is_written_without_a_source(tmp_path: Path) -> None:
    source = write_video(tmp_path / "a.mp4", sound=True)
    reader = VideoReader(source)
    start, end = STEADY[5] * TIME_BASE, STEADY[10] * TIME_BASE
    with VideoWriter(tmp_path / "b.mp4", reader.description) as writer:
        for frame in reader.read_frames(start, end):
            writer.write(frame)
    assert times_of(tmp_path / "b.mp4") == [time * TIME_BASE for time in STEADY[5:10]]
    assert list_kinds(tmp_path / "b.mp4") == []
