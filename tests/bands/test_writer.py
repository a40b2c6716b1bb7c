from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fusionray.bands.png_stream import stream_png
from fusionray.bands.writer import BandFormat, BandOutput, BandWriter
from fusionray.errors import PictureNotWritten
from fusionray.safety.provenance import Provenance, build_packet, read_provenance
from tests.support.full_disk import full_disk

Pixels = NDArray[np.uint8]


def draw(height: int = 203, width: int = 61) -> Pixels:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write(path: Path, pixels: Pixels, output: BandOutput, rows: int = 50) -> None:
    with BandWriter(path, pixels.shape[1], pixels.shape[0], output) as writer:
        for start in range(0, len(pixels), rows):
            writer.write(pixels[start : start + rows])


@pytest.mark.parametrize("rows", [1, 7, 50, 1000])
@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_rows_come_back_bit_by_bit(tmp_path: Path, kind: BandFormat, rows: int) -> None:
    pixels = draw()
    write(tmp_path / "a", pixels, BandOutput(kind), rows)
    with Image.open(tmp_path / "a") as picture:
        assert picture.format == kind.upper()
        np.testing.assert_array_equal(np.asarray(picture), pixels)


def test_a_jpeg_is_close_to_its_rows(tmp_path: Path) -> None:
    pixels = np.full((90, 70, 3), [200, 30, 60], np.uint8)
    write(tmp_path / "a", pixels, BandOutput("jpeg", quality=95))
    with Image.open(tmp_path / "a") as picture:
        assert np.abs(np.asarray(picture).astype(int) - pixels).max() <= 3


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1), (40, 30_000)])
def test_streams_of_any_shape_are_pngs(shape: tuple[int, int]) -> None:
    pixels = draw(*shape)
    data = b"".join(stream_png(shape[1], shape[0], [pixels[:1], pixels[1:]] if len(pixels) > 1 else [pixels]))
    with Image.open(io.BytesIO(data)) as picture:
        picture.load()
        np.testing.assert_array_equal(np.asarray(picture), pixels)


@pytest.mark.parametrize("kind", ["png", "jpeg", "tiff"])
def test_the_file_holds_its_metadata(tmp_path: Path, kind: BandFormat) -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    provenance = Provenance("a-model", "1.0")
    write(tmp_path / "a", draw(), BandOutput(kind, xmp=build_packet(provenance), icc_profile=profile))
    with Image.open(tmp_path / "a") as picture:
        assert picture.info.get("icc_profile") == profile
    assert read_provenance((tmp_path / "a").read_bytes()) == provenance


@pytest.mark.parametrize("kind", ["png", "jpeg", "tiff"])
def test_a_full_disk_is_said_and_nothing_waits(tmp_path: Path, kind: BandFormat) -> None:
    pixels = draw(4000, 400)
    with full_disk(200_000), pytest.raises(PictureNotWritten, match="cannot be written"):
        write(tmp_path / "a", pixels, BandOutput(kind))


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PictureNotWritten, match="cannot be written"):
        write(tmp_path / "none" / "a", draw(), BandOutput("png"))


def test_an_error_in_the_midst_ends_the_encoder(tmp_path: Path) -> None:
    def fail_after_some_rows() -> None:
        with BandWriter(tmp_path / "a", 61, 203, BandOutput("png")) as writer:
            writer.write(draw()[:60])
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail_after_some_rows()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("encode")]


def test_missing_and_wrong_rows_are_errors_of_the_caller(tmp_path: Path) -> None:
    for height, message in ((203, "60 of 203 rows"), (50, "do not fit")):
        with (
            pytest.raises(ValueError, match=message),
            BandWriter(tmp_path / "a", 61, height, BandOutput("png")) as writer,
        ):
            writer.write(draw()[:60])


def test_a_jpeg_that_is_too_wide_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(PictureNotWritten, match="at most 65500 pixels a side"):
        BandWriter(tmp_path / "a", 70_000, 10, BandOutput("jpeg"))
    assert not (tmp_path / "a").exists()
