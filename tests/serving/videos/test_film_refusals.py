"""Films that are refused before any work: a status, a reason, and nothing is kept."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest

from tests.serving.videos.film_jobs import SOURCE, reason_of, start
from tests.support.serving import MAX_VIDEO_BYTES, MAX_VIDEO_FRAMES, OpenService
from tests.support.videos import make_frame
from tests.support.waiting import wait_for


def write(path: Path, num_frames: int = 10, size: tuple[int, int] = (96, 64), **options: str) -> bytes:
    """Write a film of mild colours."""
    with av.open(str(path), "w", options=options) as container:
        stream: Any = container.add_stream("mpeg4", 25)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        frame = make_frame("yuv420p", *size)
        for number in range(num_frames):
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()


def write_sound(path: Path) -> bytes:
    """Write a film without pictures."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("aac", 48000, layout="mono")
        samples = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        samples.sample_rate = 48000
        container.mux(stream.encode(samples))
        container.mux(stream.encode())
    return path.read_bytes()


def make_film(kind: str, folder: Path) -> bytes:
    """Make a film that is refused."""
    small = write(folder / "small.mp4")
    return {
        "start of a film": small[:24],
        "text behind a start": small[:24] + b"no film" * 100,
        "without its index": small[: small.index(b"moov") - 4],
        "cut off in its index": small[: small.index(b"moov") + 40],
        "index at the start, cut off": write(folder / "fast.mp4", movflags="faststart")[:-200],
        "playlist": b"\0\0\0\x18ftypisom" + b"#EXTM3U\nfile:///etc/passwd\n",
        "sound alone": write_sound(folder / "sound.mp4"),
        "too long": write(folder / "long.mp4", MAX_VIDEO_FRAMES + 1),
        "too long, without a count": write(folder / "long.mkv", MAX_VIDEO_FRAMES + 1),
        "frames too large": write(folder / "wide.mp4", 2, (640, 480)),
        "no frames": b"\x1aE\xdf\xa3" + bytes(400),
        "too many bytes": small + bytes(MAX_VIDEO_BYTES),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        ("start of a film", (415, "not_a_video")),
        ("text behind a start", (415, "not_a_video")),
        ("without its index", (415, "not_a_video")),
        ("cut off in its index", (422, "truncated")),
        ("index at the start, cut off", (422, "truncated")),
        ("playlist", (415, "not_a_video")),
        ("sound alone", (415, "no_video")),
        ("too long", (413, "too_long")),
        ("too long, without a count", (413, "too_long")),
        ("frames too large", (413, "too_large")),
        ("no frames", (415, "not_a_video")),
        ("too many bytes", (413, "too_large")),
    ],
)
def test_a_film_that_cannot_be_used_is_refused_at_once(
    client: httpx.Client, open_service: OpenService, tmp_path: Path, kind: str, refusal: tuple[int, str]
) -> None:
    answer = start(client, make_film(kind, tmp_path))
    assert reason_of(answer) == refusal, answer.text
    # The client knows neither the folders of the service nor the names that it gives.
    assert str(open_service.folder) not in answer.text
    assert "tmp/" not in answer.text
    assert client.get("/v1/jobs").json()["jobs"] == []
    wait_for(lambda: list((open_service.folder / "runs" / "jobs" / "tmp").iterdir()) == [])


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"faces": "0"}, "faces"),
        ({"format": "png"}, "format"),
        ({"strength": "0.5"}, "strength"),
        ({"leave_out": "everything"}, "leave_out"),
        ({"faces": "reference"}, "reference"),
    ],
)
def test_fields_of_pictures_are_refused_for_a_film(
    client: httpx.Client, talk: Path, form: dict[str, str], field: str
) -> None:
    answer = start(client, talk.read_bytes(), **form)
    assert reason_of(answer) == (422, "bad_fields")
    assert field in answer.json()["detail"]


def test_a_film_is_alone_in_its_job(client: httpx.Client, talk: Path) -> None:
    targets = [("target", ("a", data)) for data in (SOURCE, talk.read_bytes())]
    assert reason_of(client.post("/v1/jobs", files=[("source", ("a", SOURCE)), *targets])) == (422, "bad_fields")
    for form in ({"leave_out": "audio"}, {"steady_colours": "true"}):
        assert reason_of(start(client, SOURCE, **form)) == (422, "bad_fields")


def test_a_film_is_no_source(client: httpx.Client, talk: Path) -> None:
    files = [("source", ("a", talk.read_bytes())), ("target", ("a", SOURCE))]
    assert client.post("/v1/jobs", files=files).status_code == 202
