"""Segments that are copied from the source play beside encoded ones: every frame of each is what it was."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fusionray.cli import main
from fusionray.safety.verify import verify
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.joining import join_segments
from fusionray.video.files.parameter_sets import read_parameter_sets
from fusionray.video.files.reader import VideoReader, frame_time
from fusionray.video.files.writer import VideoWriter
from fusionray.video.segments import Segment, plan_segments
from fusionray.video.unchanged import collect_packets, copy_segment
from tests.support.videos import copy_planes, probe, read_packets, write_video
from tests.video.films import film

TIMES = tuple(range(0, 50 * 512, 512))


def write_parts(source: Path, folder: Path, settings: EncoderSettings) -> list[Path]:
    """Copy every other segment, and encode the rest."""
    reader = VideoReader(source)
    parts = []
    for segment in plan_segments(reader, Fraction(1, 4)):
        parts.append(folder / f"part-{segment.number}{source.suffix}")
        if segment.number % 2:
            assert copy_segment(reader, segment, parts[-1], settings)
            continue
        with VideoWriter(parts[-1], reader.description, settings=settings) as writer:
            for frame in reader.read_frames(segment.start, segment.end):
                writer.write(frame)
    return parts


SOURCE_OPTIONS = {
    "libx264": {"g": "10", "bf": "2", "preset": "veryslow"},
    "libx265": {"x265-params": "keyint=10:open-gop=0:log-level=error"},
}


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
@pytest.mark.parametrize(("encoder", "tag"), [("libx264", "avc3"), ("libx265", "hev1")])
def test_copied_and_encoded_segments_make_one_video(tmp_path: Path, suffix: str, encoder: str, tag: str) -> None:
    options = SOURCE_OPTIONS[encoder]
    source = write_video(tmp_path / f"a{suffix}", TIMES, encoder=encoder, options=options, sound=True)
    parts = write_parts(source, tmp_path, EncoderSettings(encoder, preset="ultrafast"))
    assert len(parts) >= 3
    reader = VideoReader(source)
    whole = tmp_path / f"whole{suffix}"
    join_segments(parts, whole, reader.description, source)
    frames = list(VideoReader(whole).read_frames())
    originals = list(reader.read_frames())
    assert [frame_time(frame) for frame in frames] == [frame_time(frame) for frame in originals]
    in_parts = [frame for part in parts for frame in VideoReader(part).read_frames()]
    for frame, expected in zip(frames, in_parts, strict=True):
        for one, other in zip(copy_planes(frame), copy_planes(expected), strict=True):
            np.testing.assert_array_equal(one, other)
    copied = plan_segments(reader, Fraction(1, 4))[1]
    for frame, original in zip(frames, originals, strict=True):
        if copied.start is not None and copied.end is not None and copied.start <= frame_time(frame) < copied.end:
            assert all(
                (one == other).all() for one, other in zip(copy_planes(frame), copy_planes(original), strict=True)
            )
    # The packets of a copied segment are those of the source, but for what is put before the first of them.
    old, new = ({time: data for data, time in read_packets(path, "video")} for path in (source, whole))
    inside = [time for time in old if copied.start is not None and copied.start < time < (copied.end or 0)]
    assert inside
    assert all(new[time] == old[time] for time in inside)
    assert probe(whole)["streams"][0]["codec_tag_string"] == tag


def test_what_cannot_be_copied_is_not(tmp_path: Path) -> None:
    open_gop = {"g": "10", "bf": "3", "x264-params": "open-gop=1"}
    settings = EncoderSettings()
    mixed = VideoReader(write_video(tmp_path / "open.mp4", TIMES, options=open_gop))
    segments = plan_segments(mixed, Fraction(1, 4))
    copied = [copy_segment(mixed, each, tmp_path / f"{each.number}.mp4", settings) for each in segments]
    assert not all(copied)
    other = VideoReader(write_video(tmp_path / "other.mp4", TIMES, encoder="libx265", options={}))
    assert not copy_segment(other, plan_segments(other)[0], tmp_path / "a.mp4", settings)
    assert not (tmp_path / "a.mp4").exists()


@pytest.mark.parametrize("cut", [0, 3, 6, 12, 20, 25])
def test_headers_that_end_early_have_no_sets(tmp_path: Path, cut: int) -> None:
    import av

    with av.open(str(write_video(tmp_path / "a.mp4"))) as container:
        headers = container.streams.video[0].codec_context.extradata
    assert headers is not None
    assert read_parameter_sets("h264", headers)
    assert read_parameter_sets("h264", headers[:cut]) is None
    assert read_parameter_sets("hevc", headers[:cut]) is None
    assert read_parameter_sets("vp9", headers) is None


@pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")
def test_a_stretch_without_a_face_is_copied_if_the_user_wishes(tmp_path: Path, bundle: str, source: str) -> None:
    target = film(tmp_path / "talk.mp4", num_frames=40, key_frames=8, appears=16)
    encoded, copied = tmp_path / "encoded.mp4", tmp_path / "copied.mp4"
    arguments = ["--bundle", bundle, "--segment-seconds", "0.3"]
    assert main(["fuse-video", source, target, str(encoded), *arguments]) == 0
    assert main(["fuse-video", source, target, str(copied), *arguments, "--copy-unchanged"]) == 0
    old, new = ([data for data, _ in read_packets(Path(path), "video")] for path in (target, copied))
    # The first segment has its headers outside of the packets.
    assert new[:16] == old[:16]
    assert len(new) == len(old) == 40
    assert new[16:] != old[16:]
    assert not set(old) & {data for data, _ in read_packets(encoded, "video")}
    assert verify(copied.read_bytes()).ai_made


def packet(time: int, *, is_keyframe: bool = False, is_discard: bool = False) -> Any:
    """Stand for a packet; PyAV cannot make one that an edit list leaves out."""
    fields = {"pts": time, "time_base": Fraction(1), "size": 1}
    return SimpleNamespace(**fields, is_keyframe=is_keyframe, is_discard=is_discard)


@pytest.mark.parametrize(
    ("packets", "copied"),
    [
        ([packet(4, is_keyframe=True), packet(6), packet(5), packet(8, is_keyframe=True), packet(9)], True),
        ([packet(1), packet(4, is_keyframe=True), packet(5), packet(8, is_keyframe=True)], True),
        ([packet(4, is_keyframe=True), packet(5, is_discard=True), packet(8, is_keyframe=True)], False),
        ([packet(4, is_keyframe=True), packet(3), packet(8, is_keyframe=True)], False),
        ([packet(4, is_keyframe=True), packet(8, is_keyframe=True), packet(7)], False),
        ([packet(5), packet(8, is_keyframe=True)], False),
    ],
)
def test_only_packets_that_stand_alone_are_copied(packets: list[Any], copied: bool) -> None:
    found = collect_packets(iter(packets), Segment(1, Fraction(4), Fraction(8), 3))
    assert (found is not None) == copied
    if found is not None:
        assert all(4 <= each.pts < 8 for each in found)
