"""Films are told from other files by their first bytes."""

from __future__ import annotations

from pathlib import Path

import av
import pytest

from fusionray.video.files.signature import SIGNATURE_BYTES, find_video_suffix
from tests.support.pictures import draw_person
from tests.support.serving import encode
from tests.support.videos import make_frame


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("a.mp4", ".mp4"),
        ("a.m4v", ".mp4"),
        ("a.mov", ".mov"),
        ("a.mkv", ".mp4"),
        ("a.webm", ".mp4"),
        ("a.avi", ".mp4"),
        ("a.ts", ".mp4"),
        ("a.m2ts", ".mp4"),
        ("a.mpg", ".mp4"),
        ("a.flv", ".mp4"),
        ("a.wmv", ".mp4"),
        ("a.ogv", ".mp4"),
    ],
)
def test_films_are_recognised_whatever_they_are_named(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / name
    encoders = {".webm": "libvpx", ".wmv": "mpeg2video", ".mpg": "mpeg2video", ".flv": "flv", ".ogv": "libtheora"}
    encoder = encoders.get(path.suffix, "mpeg4")
    if encoder not in av.codecs_available:
        pytest.skip(f"this FFmpeg has no {encoder}")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(encoder, 25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"  # type: ignore[attr-defined]
        for number in range(10):
            frame = make_frame("yuv420p", phase=number / 5)
            frame.pts = number
            container.mux(stream.encode(frame))  # type: ignore[attr-defined]
        container.mux(stream.encode())  # type: ignore[attr-defined]
    assert find_video_suffix(path.read_bytes()[:SIGNATURE_BYTES]) == suffix


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "ICO", "PDF"])
def test_pictures_are_no_films(kind: str) -> None:
    assert find_video_suffix(encode(draw_person(1), kind)[:SIGNATURE_BYTES]) is None


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"ftyp",
        b"\0\0\0\x18ftypheic\0\0\0\0",
        b"\0\0\0\x18ftypcrx \0\0\0\0",
        b"#EXTM3U\nfile:///etc/passwd",
        b"RIFF\0\0\0\0WAVE",
        b"ID3\3",
        b"GGGG",
        b"ffconcat version 1.0\n",
    ],
)
def test_other_files_are_no_films(start: bytes) -> None:
    assert find_video_suffix(start) is None
