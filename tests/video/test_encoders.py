"""What encoders keep of the frames that they are given: every bit, the tags, and the same bytes each time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from fusionray.errors import VideoNotWritten
from fusionray.video.files.describing import describe_video
from fusionray.video.files.description import HdrMetadata
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.reader import VideoReader
from fusionray.video.files.writer import VideoWriter
from fusionray.video.frames.planes import blend_region, read_region
from tests.support.child_python import run_python
from tests.support.videos import (
    STEADY,
    copy_planes,
    needs_ffprobe,
    probe,
    rewrite,
    write_video,
)

# The encoders of pixel formats that FFV1 does not know.
OWN_ENCODERS = {"yuvj420p": "mjpeg", "gbrp": "libx265"}
LOSSLESS = EncoderSettings("ffv1")


@needs_ffprobe
@pytest.mark.parametrize(
    ("pixel_format", "encoder", "tags", "names"),
    [
        ("yuv420p", "libx264", (1, 1, 1, 1), ("bt709", "bt709", "bt709", "tv")),
        ("yuv420p", "libx264", (6, 6, 6, 2), ("smpte170m", "smpte170m", "smpte170m", "pc")),
        ("yuvj420p", "libx264", (1, 1, 1, 2), ("bt709", "bt709", "bt709", "pc")),
        ("yuv420p10le", "libx265", (9, 16, 9, 1), ("bt2020", "smpte2084", "bt2020nc", "tv")),
        ("yuv420p10le", "libx264", (9, 18, 9, 1), ("bt2020", "arib-std-b67", "bt2020nc", "tv")),
        ("yuv420p10le", "libsvtav1", (9, 16, 9, 1), ("bt2020", "smpte2084", "bt2020nc", "tv")),
        ("yuv422p10le", "prores_ks", (1, 1, 1, 1), ("bt709", "bt709", "bt709", "tv")),
    ],
)
def test_colour_tags_aspect_and_rotation_survive(
    tmp_path: Path, pixel_format: str, encoder: str, tags: tuple[int, int, int, int], names: tuple[str, ...]
) -> None:
    source = write_video(
        tmp_path / "a.mov", pixel_format=pixel_format, tags=tags, rotation=-90, sample_aspect=Fraction(4, 3)
    )
    # MOV has no place for AV1.
    name = "b.mp4" if encoder == "libsvtav1" else "b.mov"
    target = rewrite(source, tmp_path / name, EncoderSettings(encoder))
    stream = probe(target)["streams"][0]
    keys = ("color_primaries", "color_transfer", "color_space", "color_range")
    assert tuple(stream[key] for key in keys) == names
    assert stream["pix_fmt"].replace("yuvj", "yuv") == pixel_format.replace("yuvj", "yuv")
    assert stream["sample_aspect_ratio"] == "4:3"
    assert stream["side_data_list"][0]["rotation"] == -90
    assert describe_video(target).orientation == 6


@needs_ffprobe
def test_hevc_in_mp4_has_the_tag_that_apple_plays(tmp_path: Path) -> None:
    target = rewrite(
        write_video(tmp_path / "a.mp4"), tmp_path / "b.mp4", EncoderSettings("libx265", preset="ultrafast")
    )
    assert probe(target)["streams"][0]["codec_tag_string"] == "hvc1"


# In new memory x265 finds zeros where it set nothing, and a film of two frames is right by chance.
SHORT_FILM = """
import sys
from pathlib import Path
from fusionray.video.files.encoders import EncoderSettings
from tests.support.videos import rewrite
rewrite(Path(sys.argv[1]), Path(sys.argv[2]), EncoderSettings("libx265"))
"""


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_film_of_few_frames_is_written_in_memory_that_was_in_use_before(tmp_path: Path, frames: int) -> None:
    source, target = write_video(tmp_path / "a.mp4", STEADY[:frames]), tmp_path / "b.mov"
    for fill in ("1", "170"):
        run_python("-c", SHORT_FILM, str(source), str(target), MALLOC_PERTURB_=fill)
        with av.open(str(target)) as film:
            times = [(packet.dts, packet.pts) for packet in film.demux(video=0) if packet.size]
            second = 1 / film.streams.video[0].time_base
        assert len(times) == frames
        assert all(-second < decoded <= shown for decoded, shown in times)


@pytest.mark.parametrize("encoder", ["libx264", "libx265", "libsvtav1"])
def test_hdr_metadata_is_written_into_the_coded_video(tmp_path: Path, encoder: str) -> None:
    parts = "master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,50):max-cll=1000,400"
    source = write_video(
        tmp_path / "a.mkv", encoder="libx265", pixel_format="yuv420p10le", tags=(9, 16, 9, 1),
        time_base=Fraction(1, 1000), options={"x265-params": f"log-level=none:{parts}"},
    )  # fmt: skip
    expected = describe_video(source).hdr
    assert expected == HdrMetadata(
        (Fraction(17, 25), Fraction(8, 25), Fraction(53, 200), Fraction(69, 100), Fraction(3, 20), Fraction(3, 50),
         Fraction(3127, 10000), Fraction(329, 1000), Fraction(1, 200), Fraction(1000)), (1000, 400),
    )  # fmt: skip
    found = describe_video(rewrite(source, tmp_path / "b.mp4", EncoderSettings(encoder))).hdr
    assert found.content_light == (1000, 400)
    assert found.mastering is not None
    assert expected.mastering is not None
    assert all(abs(a - b) < Fraction(1, 5000) for a, b in zip(found.mastering, expected.mastering, strict=True))


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p10le", "yuv444p", "gbrp10le", "yuva420p"])
def test_frames_reach_the_encoder_bit_for_bit(tmp_path: Path, pixel_format: str) -> None:
    source = write_video(
        tmp_path / "a.mkv", encoder="ffv1", pixel_format=pixel_format, size=(97, 63), time_base=Fraction(1, 1000)
    )
    target = rewrite(source, tmp_path / "b.mkv", LOSSLESS)
    pairs = zip(VideoReader(source).read_frames(), VideoReader(target).read_frames(), strict=True)
    for old, new in pairs:
        assert old.format.name == new.format.name == pixel_format
        assert all(np.array_equal(a, b) for a, b in zip(copy_planes(old), copy_planes(new), strict=True))


def test_an_edited_region_changes_nothing_outside_of_its_mask(tmp_path: Path) -> None:
    source, target = write_video(tmp_path / "a.mp4"), tmp_path / "b.mkv"
    reader = VideoReader(source)
    box, mask = (20, 10, 40, 30), np.zeros((30, 40), np.float32)
    mask[6:24, 8:32] = 1
    with VideoWriter(target, reader.description, source, LOSSLESS) as writer:
        for frame in reader.read_frames():
            blend_region(frame, box, 255 - read_region(frame, box), mask)
            writer.write(frame)
    for old, new in zip(reader.read_frames(), VideoReader(target).read_frames(), strict=True):
        for before, after, down in zip(copy_planes(old), copy_planes(new), (1, 2, 2), strict=True):
            changed = np.argwhere(before != after)
            assert len(changed)
            assert changed.min(0).tolist() >= [16 // down, 28 // down]
            assert changed.max(0).tolist() <= [(33 // down), (51 // down)]


@pytest.mark.parametrize(
    ("pixel_format", "size", "encoder", "written"),
    [
        ("yuv420p", (97, 63), "libx264", "yuv444p"),
        ("yuv422p", (96, 63), "libx264", "yuv422p"),
        ("yuv444p", (96, 64), "libx265", "yuv444p"),
        ("yuv420p10le", (96, 64), "libx264", "yuv420p10le"),
        ("yuv420p", (96, 64), "prores_ks", "yuv422p10le"),
        ("yuvj420p", (96, 64), "libsvtav1", "yuv420p"),
        ("gbrp", (96, 64), "libx264", "yuv444p"),
        # FFmpeg decodes ProRes 4444 to twelve bits, and grey H.264 to 4:2:0.
        ("yuva420p", (96, 64), "prores_ks", "yuva444p12le"),
        ("gray", (96, 64), "libx264", "yuv420p"),
    ],
)
def test_the_pixel_format_loses_nothing(
    tmp_path: Path, pixel_format: str, size: tuple[int, int], encoder: str, written: str
) -> None:
    own = OWN_ENCODERS.get(pixel_format, "ffv1")
    source = write_video(
        tmp_path / "a.mkv", encoder=own, pixel_format=pixel_format, size=size, time_base=Fraction(1, 1000),
        options={"x265-params": "log-level=none"} if own == "libx265" else {"threads": "1"},
        tags=(1, 1, 0 if "gbr" in pixel_format else 1, 0),
    )  # fmt: skip
    target = rewrite(source, tmp_path / "b.mkv", EncoderSettings(encoder))
    reader = VideoReader(target)
    assert reader.description.pixel_format in {written, written.replace("yuv", "yuvj")}
    assert (reader.description.width, reader.description.height) == size
    box = (8, 8, 80, 48)
    for old, new in zip(VideoReader(source).read_frames(), reader.read_frames(), strict=True):
        assert np.abs(read_region(old, box).astype(int) - read_region(new, box)).mean() < 3


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU: NVENC might start")
@pytest.mark.parametrize("encoder", ["h264_nvenc", "hevc_nvenc"])
def test_nvenc_without_a_gpu_is_a_clear_error(tmp_path: Path, encoder: str) -> None:
    source = write_video(tmp_path / "a.mp4")
    with pytest.raises(VideoNotWritten, match="NVENC needs a GPU"):
        rewrite(source, tmp_path / "b.mp4", EncoderSettings(encoder))
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_the_same_frames_become_the_same_bytes_whatever_the_memory_held(tmp_path: Path) -> None:
    source = write_video(tmp_path / "a.mp4", tuple(range(0, 40 * 512, 512)), size=(320, 192))
    script = (
        "import sys; from pathlib import Path; from fusionray.video.files.reader import VideoReader;"
        "from fusionray.video.files.writer import VideoWriter; reader = VideoReader(Path(sys.argv[1]))\n"
        "with VideoWriter(Path(sys.argv[2]), reader.description) as writer:\n"
        "    for frame in reader.read_frames(): writer.write(frame)"
    )
    # glibc fills memory that it hands out with such a byte.
    for filled in ("0", "85", "170"):
        run_python("-c", script, str(source), str(tmp_path / f"{filled}.mp4"), MALLOC_PERTURB_=filled)
    written = [(tmp_path / f"{filled}.mp4").read_bytes() for filled in ("0", "85", "170")]
    assert written[0] == written[1] == written[2]
