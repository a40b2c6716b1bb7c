"""A video that is cut at key frames, and joined again: no frame is lost, doubled, or shown at another time."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from fusionray.errors import VideoNotWritten
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.joining import choose_decoding_times, join_segments
from fusionray.video.files.reader import VideoReader, frame_time
from fusionray.video.files.writer import VideoWriter
from fusionray.video.segments import Segment, plan_segments
from tests.support.videos import TIME_BASE, copy_planes, read_packets, write_video

# Two seconds with gaps: no two neighbours are equally far apart.
UNEVEN = tuple(int(value) for value in np.cumsum(np.arange(50) % 7 * 100 + 200))


def times_of(path: Path, segment: Segment | None = None) -> list[Fraction]:
    reader = VideoReader(path)
    bounds = (segment.start, segment.end) if segment else (None, None)
    return [frame_time(frame) for frame in reader.read_frames(*bounds)]


def write_parts(source: Path, folder: Path, suffix: str, encoder: str = "libx264") -> list[Path]:
    reader = VideoReader(source)
    parts = []
    for segment in plan_segments(reader, Fraction(1, 4)):
        parts.append(folder / f"part-{segment.number}{suffix}")
        with VideoWriter(parts[-1], reader.description, settings=EncoderSettings(encoder)) as writer:
            for frame in reader.read_frames(segment.start, segment.end):
                writer.write(frame)
    return parts


@pytest.mark.parametrize("options", [{"g": "5"}, {"g": "10", "bf": "3", "x264-params": "open-gop=1"}])
def test_segments_begin_at_key_frames_and_hold_every_frame_once(tmp_path: Path, options: dict[str, str]) -> None:
    source = write_video(tmp_path / "a.mp4", UNEVEN, options=options)
    segments = plan_segments(VideoReader(source), Fraction(1, 4))
    assert len(segments) > 3
    assert [frame for segment in segments for frame in times_of(source, segment)] == times_of(source)
    assert [len(times_of(source, segment)) for segment in segments] == [segment.num_frames for segment in segments]
    cuts = [segment.end for segment in segments if segment.end is not None]
    assert all(later - earlier >= Fraction(1, 4) for earlier, later in itertools.pairwise(cuts))


@pytest.mark.parametrize(("name", "encoder", "pixel_format"), [("a.gif", "gif", "pal8"), ("a.avi", "mpeg4", "yuv420p")])
def test_what_cannot_be_cut_is_one_segment(tmp_path: Path, name: str, encoder: str, pixel_format: str) -> None:
    with av.open(str(tmp_path / name), "w") as output:
        stream: Any = output.add_stream(encoder, 10, options={"g": "2"})
        stream.codec_context.width, stream.codec_context.height = 64, 48
        stream.codec_context.pix_fmt = "rgb8" if name == "a.gif" else pixel_format
        for number in range(12):
            picture = np.full((48, 64, 3), 20 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=stream.codec_context.pix_fmt)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    (segment,) = plan_segments(VideoReader(tmp_path / name), Fraction(1, 100))
    assert (segment.start, segment.end, segment.num_frames) == (None, None, 12)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("encoder", ["libx264", "libx265"])
def test_joined_segments_are_the_video(tmp_path: Path, suffix: str, encoder: str) -> None:
    base = Fraction(1, 1000) if suffix == ".mkv" else TIME_BASE
    source = write_video(tmp_path / f"a{suffix}", UNEVEN[:40], options={"g": "5"}, time_base=base, sound=True)
    reader = VideoReader(source)
    parts = write_parts(source, tmp_path, suffix, encoder)
    whole = tmp_path / f"whole{suffix}"
    join_segments(parts, whole, reader.description, source)
    assert times_of(whole) == times_of(source)
    assert read_packets(whole, "audio") == read_packets(source, "audio")
    with av.open(str(whole)) as container:
        packets: list[Any] = [packet for packet in container.demux(video=0) if packet.size]
    # Matroska does not keep when a frame is decoded.
    packets = [] if suffix == ".mkv" else packets
    decoded = [packet.dts for packet in packets]
    assert all(earlier < later for earlier, later in itertools.pairwise(decoded))
    assert all(packet.dts <= packet.pts for packet in packets)
    # Each frame is that of its segment, bit for bit.
    in_parts = [copy_planes(frame) for part in parts for frame in VideoReader(part).read_frames()]
    for frame, planes in zip(VideoReader(whole).read_frames(), in_parts, strict=True):
        for one, other in zip(copy_planes(frame), planes, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_joined_video_is_the_same_file_each_time(tmp_path: Path) -> None:
    source = write_video(tmp_path / "a.mp4", UNEVEN, sound=True)
    for name in ("b", "c"):
        folder = tmp_path / name
        folder.mkdir()
        join_segments(
            write_parts(source, folder, ".mp4"), folder / "whole.mp4", VideoReader(source).description, source
        )
    assert (tmp_path / "b/whole.mp4").read_bytes() == (tmp_path / "c/whole.mp4").read_bytes()


def test_segments_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    source = write_video(tmp_path / "a.mp4", UNEVEN)
    parts = write_parts(source, tmp_path, ".mp4")
    description = VideoReader(source).description
    with pytest.raises(VideoNotWritten, match="two frames are shown at the same time"):
        join_segments([*parts, parts[0]], tmp_path / "whole.mp4", description)
    other = write_video(tmp_path / "other.mp4", [time + 100_000 for time in UNEVEN], size=(64, 48))
    with pytest.raises(VideoNotWritten, match="encoded with other settings"):
        join_segments([*parts, other], tmp_path / "whole.mp4", description)
    assert not (tmp_path / "whole.mp4").exists()


def test_frames_are_decoded_before_they_are_shown() -> None:
    # Decoded as I P B B, twice; the encoder of the second part knows nothing of the first one.
    shown = np.array([0, 30, 10, 20, 40, 75, 50, 65])
    decoded = choose_decoding_times(shown)
    np.testing.assert_array_equal(decoded, [-10, 0, 10, 20, 30, 40, 50, 65])
    assert (decoded <= shown).all()
    np.testing.assert_array_equal(choose_decoding_times(np.array([3, 5, 9])), [3, 5, 9])
    np.testing.assert_array_equal(choose_decoding_times(np.array([7])), [7])
