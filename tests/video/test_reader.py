from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image as PillowImage

from fusionray.errors import InputMissing, VideoRejected
from fusionray.video.files.describing import describe_video
from fusionray.video.files.opening import VideoLimits
from fusionray.video.files.reader import Damage, VideoReader, frame_time
from tests.support.videos import STEADY, TIME_BASE, copy_planes, write_video

VARIABLE = (0, 512, 700, 2000, 2001, 2600, 7000, 7512, 9000)


def times_of(reader: VideoReader, start: Fraction | None = None, end: Fraction | None = None) -> list[Fraction]:
    return [frame_time(frame) for frame in reader.read_frames(start, end)]


def write_animation(path: Path) -> Path:
    pictures = [PillowImage.fromarray(np.full((33, 47, 3), level, np.uint8)) for level in (20, 120, 220)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=[40, 80, 120], lossless=True)
    return path


def test_a_description_says_what_a_video_is(tmp_path: Path) -> None:
    path = write_video(
        tmp_path / "a.mp4", VARIABLE, sound=True, rotation=90, sample_aspect=Fraction(4, 3), tags=(1, 1, 1, 1)
    )
    found = describe_video(path)
    assert (found.width, found.height, found.pixel_format) == (96, 64, "yuv420p")
    assert (found.codec, found.num_frames, found.time_base) == ("h264", len(VARIABLE), TIME_BASE)
    assert found.sample_aspect == Fraction(4, 3)
    assert (found.colour.primaries, found.colour.transfer, found.colour.matrix, found.colour.range) == (
        "bt709", "bt709", "bt709", "tv",
    )  # fmt: skip
    # 90 degrees counter-clockwise.
    assert found.orientation == 8
    assert not found.interlaced


@pytest.mark.parametrize("offset", [0, 19_200])
@pytest.mark.parametrize("suffix", ["mp4", "mov", "avi", "mkv", "ts"])
def test_frames_come_at_their_own_times(tmp_path: Path, suffix: str, offset: int) -> None:
    base, times = TIME_BASE, tuple(time + offset for time in VARIABLE)
    if suffix in {"avi", "mkv", "ts"}:
        # These containers count in a fixed unit, or in frames.
        base = {"avi": Fraction(1, 25), "mkv": Fraction(1, 1000), "ts": Fraction(1, 90000)}[suffix]
        times = tuple(range(9)) if suffix == "avi" else times
    options = {"g": "5", "bf": "2", "x264-params": "b-adapt=0"}
    path = write_video(tmp_path / f"a.{suffix}", times, time_base=base, options=options)
    found = times_of(VideoReader(path))
    steps = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert steps == [(later - earlier) * base for earlier, later in itertools.pairwise(times)]
    if suffix in {"mp4", "mov", "mkv"}:
        assert found[0] == times[0] * base


@pytest.mark.parametrize("options", [{"g": "5"}, {"g": "5", "x264-params": "open-gop=1:bframes=3"}])
def test_a_span_of_time_gives_the_same_frames_as_the_whole(tmp_path: Path, options: dict[str, str]) -> None:
    times = tuple(range(0, 40 * 512, 512))
    reader = VideoReader(write_video(tmp_path / "a.mp4", times, options=options))
    whole = [(frame_time(frame), copy_planes(frame)) for frame in reader.read_frames()]
    key_frames = sorted(time for time, is_key in reader.list_packets() if is_key and time is not None)
    assert len(key_frames) == 8
    spans = itertools.combinations([*key_frames, whole[7][0], whole[8][0] - Fraction(1, 999), whole[-1][0]], 2)
    for start, end in itertools.islice(((a, b) for a, b in spans if a < b), 20):
        part = [(frame_time(frame), copy_planes(frame)) for frame in reader.read_frames(start, end)]
        expected = [(time, planes) for time, planes in whole if start <= time < end]
        assert [time for time, _ in part] == [time for time, _ in expected]
        assert all(
            np.array_equal(a, b)
            for (_, p), (_, q) in zip(part, expected, strict=True)
            for a, b in zip(p, q, strict=True)
        )


def test_iterations_do_not_disturb_each_other(tmp_path: Path) -> None:
    reader = VideoReader(write_video(tmp_path / "a.mp4"))
    pairs = list(zip(reader.read_frames(), reader.read_frames(), strict=True))
    assert [frame_time(frame) for frame, _ in pairs] == [time * TIME_BASE for time in STEADY]


def test_frames_may_be_edited_while_later_ones_need_them(tmp_path: Path) -> None:
    from fusionray.video.frames.planes import blend_region

    reader = VideoReader(write_video(tmp_path / "a.mp4"))
    untouched = [copy_planes(frame) for frame in reader.read_frames()]
    black, everywhere = np.zeros((64, 96, 3), np.uint8), np.ones((64, 96), np.float32)
    for frame, expected in zip(reader.read_frames(), untouched, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(copy_planes(frame), expected, strict=True))
        blend_region(frame, (0, 0, 96, 64), black, everywhere)


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_an_animation_is_a_video_without_sound(tmp_path: Path, suffix: str) -> None:
    from fusionray.video.frames.planes import read_region

    reader = VideoReader(write_animation(tmp_path / f"a.{suffix}"))
    frames = list(reader.read_frames())
    assert [frame_time(frame) for frame in frames] == [0, Fraction(1, 25), Fraction(3, 25)]
    assert [int(read_region(frame, (0, 0, 47, 33)).mean()) for frame in frames] == [20, 120, 220]
    assert reader.description.codec == suffix
    assert next(reader.list_packets())[0] == 0
    assert times_of(reader, Fraction(1, 25)) == [Fraction(1, 25), Fraction(3, 25)]


def test_interlaced_frames_keep_their_flag(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", options={"x264-params": "tff=1"}, time_base=Fraction(1, 1000))
    reader = VideoReader(path)
    assert reader.description.interlaced
    assert all(frame.interlaced_frame for frame in reader.read_frames())


def damage(path: Path, share: float) -> Path:
    """Overwrite bytes in the middle of some packets."""
    with av.open(str(path)) as source:
        packets: list[Any] = [packet for packet in source.demux(video=0) if packet.pos and packet.size > 60]
    data = bytearray(path.read_bytes())
    for packet in packets[2 : 2 + int(len(packets) * share)]:
        start = packet.pos + packet.size // 3
        data[start : start + packet.size // 2] = b"\xa5" * (packet.size // 2)
    path.write_bytes(data)
    return path


def test_damaged_packets_are_skipped_and_counted(tmp_path: Path) -> None:
    path = damage(write_video(tmp_path / "a.mp4", tuple(range(0, 60 * 512, 512))), 0.2)
    reader = VideoReader(path)
    faults = Damage(path, reader.limits)
    found = [frame_time(frame) for frame in reader.read_frames(damage=faults)]
    assert faults.number > 0
    # Each reading counts for itself: two passes over a video find each fault twice.
    strict = VideoReader(path, VideoLimits(max_damaged_frames=faults.number))
    assert times_of(strict) == times_of(strict) == found
    assert len(found) >= 40
    assert found == sorted(set(found))


def test_frames_after_damaged_ones_of_an_avi_keep_their_times(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"
    write_video(path, tuple(range(12)), encoder="mjpeg", pixel_format="yuvj420p", time_base=Fraction(1, 25))
    whole = times_of(VideoReader(path))
    with av.open(str(path)) as source:
        packets: list[Any] = [packet for packet in source.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    for packet in packets[3:6]:
        place = data.index(bytes(packet))
        data[place : place + packet.size] = bytes(packet.size)
    path.write_bytes(data)
    faults = Damage(path, VideoLimits())
    found = [frame_time(frame) for frame in VideoReader(path).read_frames(damage=faults)]
    assert faults.number == 3
    assert found == whole[:3] + whole[6:]


def test_too_many_damaged_packets_end_the_reading(tmp_path: Path) -> None:
    path = damage(write_video(tmp_path / "a.mp4", tuple(range(0, 60 * 512, 512))), 0.8)
    reader = VideoReader(path, VideoLimits(max_damaged_frames=3))
    with pytest.raises(VideoRejected, match="more than 3 frames are damaged") as raised:
        times_of(reader)
    assert raised.value.reason == "damaged"


def write_nothing(path: Path) -> Path:
    path.touch()
    return path


def write_text(path: Path) -> Path:
    path.write_text("This is no video.\n" * 50)
    return path


def write_playlist(path: Path) -> Path:
    path.write_text("ffconcat version 1.0\nfile /etc/hostname\n")
    return path


def write_sound(path: Path) -> Path:
    with av.open(str(path), "w") as output:
        audio = output.add_stream("aac", 48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
        frame.sample_rate = 48000
        output.mux(audio.encode(frame))
        output.mux(audio.encode(None))
    return path


def cut(path: Path, share: float) -> Path:
    # The index comes first, so that the file opens.
    source = write_video(path.with_name("whole.mp4"), tuple(range(0, 60 * 512, 512)))
    moved = path.with_name("moved.mp4")
    with av.open(str(source)) as old, av.open(str(moved), "w", container_options={"movflags": "faststart"}) as new:
        stream = new.add_stream_from_template(old.streams.video[0], opaque=True)
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    path.write_bytes(moved.read_bytes()[: int(moved.stat().st_size * share)])
    return path


def write_headers(path: Path) -> Path:
    """Write a raw video stream of headers alone."""
    with av.open(str(write_video(path.with_name("whole.mp4")))) as source:
        headers = source.streams.video[0].codec_context.extradata
    assert headers is not None
    # The parameter sets of an avcC box, with start codes.
    sets = headers[6:]
    length = int.from_bytes(sets[:2], "big")
    path.write_bytes((b"\0\0\0\1" + sets[2 : 2 + length]) * 200)
    return path


@pytest.mark.parametrize(
    ("name", "make", "reason", "message"),
    [
        ("text.mp4", write_text, "not_a_video", "not a readable MP4"),
        ("list.mp4", write_playlist, "not_a_video", "not a readable MP4"),
        ("empty.mp4", write_nothing, "not_a_video", "not a readable MP4"),
        ("sound.mp4", write_sound, "no_video", "there is no video stream"),
        ("cut.mp4", lambda path: cut(path, 0.6), "truncated", "it is cut off after"),
        ("start.mp4", lambda path: cut(path, 0.05), "unknown_codec", "cut off at its start"),
        ("headers.h264", write_headers, "no_size", "no valid size"),
        (
            "broken.webp",
            lambda path: path.write_bytes(b"RIFF\x10\0\0\0WEBPVP8 junk") and path,
            "not_a_video",
            "damaged",
        ),
    ],
)
def test_a_bad_file_gives_one_clear_error(tmp_path: Path, name: str, make, reason: str, message: str) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path / name)
    with pytest.raises(VideoRejected, match=message) as raised:
        VideoReader(path)
    assert raised.value.reason == reason
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match=r"none\.mp4: there is no such file"):
        VideoReader(tmp_path / "none.mp4")


def test_a_size_over_the_limit_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    with pytest.raises(VideoRejected, match="96 x 64 pixels; 1000 pixels"):
        VideoReader(path, VideoLimits(max_pixels=1000))
    bomb = tmp_path / "bomb.gif"
    write_animation(bomb)
    data = bytearray(bomb.read_bytes())
    data[6:10] = b"\xff\xff\xff\xff"
    bomb.write_bytes(data)
    with pytest.raises(VideoRejected) as raised:
        VideoReader(bomb)
    assert raised.value.reason == "no_size"
    assert "more than 36000000 pixels" in str(raised.value)
