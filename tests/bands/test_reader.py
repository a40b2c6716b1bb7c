from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fusionray.bands import reader
from fusionray.bands.reader import BandReader
from fusionray.errors import ImageRejected
from fusionray.faces.image_files.decode import decode_image

Pixels = NDArray[np.uint8]


def draw(height: int = 53, width: int = 37, channels: int = 3) -> Pixels:
    return np.random.default_rng(7).integers(0, 256, (height, width, channels), dtype=np.uint8)


def save(path: Path, pixels: NDArray[Any], **options: Any) -> Path:
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(path, **options)
    return path


def read_all(file: Path) -> Pixels:
    return np.concatenate([band.pixels.copy() for band in BandReader(file).bands(16)])


@pytest.mark.parametrize(("height", "halo"), [(16, 0), (8, 4), (10, 40), (53, 0), (100, 7), (1, 1)])
def test_bands_with_their_halos_are_cut_from_the_picture(tmp_path: Path, height: int, halo: int) -> None:
    pixels = draw()
    reader = BandReader(save(tmp_path / "a.png", pixels))
    assert (reader.width, reader.height) == (37, 53)
    next_row = 0
    for band in reader.bands(height, halo):
        assert band.start == next_row
        assert band.top == max(band.start - halo, 0)
        np.testing.assert_array_equal(band.pixels, pixels[band.top : band.stop + halo])
        next_row = band.stop
    assert next_row == 53


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp", "a.jpg"])
def test_formats_read_as_the_decoder_of_small_pictures_reads_them(tmp_path: Path, name: str) -> None:
    file = save(tmp_path / name, draw(), **({"lossless": True} if name == "a.webp" else {}))
    # Two JPEG decoders may round differently.
    difference = read_all(file).astype(int) - decode_image(file.read_bytes())
    assert np.abs(difference).max() <= (2 if name == "a.jpg" else 0)


@pytest.mark.parametrize("kind", ["grey", "palette", "alpha", "grey and alpha", "16 bit", "one bit"])
def test_kinds_of_pixels_become_rgb_as_in_small_pictures(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "a.png"
    grey = draw(channels=1)[:, :, 0]
    picture = {
        "grey": lambda: Image.fromarray(grey),
        "palette": lambda: Image.fromarray(draw()).quantize(64),
        "alpha": lambda: Image.fromarray(draw(channels=4)),
        "grey and alpha": lambda: Image.fromarray(draw(channels=2)),
        "16 bit": lambda: Image.fromarray(grey.astype(np.uint16) * 257),
        "one bit": lambda: Image.fromarray(grey > 127),
    }[kind]()
    picture.save(file)
    assert np.abs(read_all(file).astype(int) - decode_image(file.read_bytes())).max() <= 1


def test_a_cmyk_picture_becomes_rgb(tmp_path: Path) -> None:
    # Cyan, with no ink of other colours.
    file = tmp_path / "a.tif"
    Image.fromarray(np.full((20, 30, 4), [255, 0, 0, 0], np.uint8), "CMYK").save(file)
    red, green, blue = read_all(file)[10, 10].tolist()
    assert red < 60
    assert min(green, blue) > 120


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_upright(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = save(tmp_path / "a.png", draw(), exif=exif)
    upright = decode_image(file.read_bytes())
    reader = BandReader(file)
    assert (reader.height, reader.width) == upright.shape[:2]
    np.testing.assert_array_equal(read_all(file), upright)


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (1, 1)])
def test_lines_and_points_are_pictures(tmp_path: Path, shape: tuple[int, int]) -> None:
    pixels = draw(*shape)
    np.testing.assert_array_equal(read_all(save(tmp_path / "a.tif", pixels)), pixels)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif"])
def test_a_truncated_picture_is_damaged(tmp_path: Path, name: str) -> None:
    file = save(tmp_path / name, draw(600, 500))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(ImageRejected, match="cannot be decoded") as caught:
        read_all(file)
    assert caught.value.reason in {"damaged", "not_an_image"}


def test_other_formats_and_other_files_are_no_pictures(tmp_path: Path) -> None:
    gif, text = save(tmp_path / "a.gif", draw(channels=1)), tmp_path / "a.png"
    text.write_text("no picture")
    for file in (gif, text, tmp_path / "missing.png"):
        with pytest.raises(ImageRejected) as caught:
            BandReader(file)
        assert caught.value.reason == "not_an_image"


def test_too_many_pixels_are_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save(tmp_path / "a.png", draw())
    with pytest.raises(ImageRejected, match="37 x 53 pixels; 1000 pixels are the limit"):
        BandReader(file, max_pixels=1000)
    monkeypatch.setattr(reader, "MAX_WHOLE_PIXELS", 1000)
    assert BandReader(file).height == 53
    progressive = save(tmp_path / "a.jpg", draw(), progressive=True)
    with pytest.raises(ImageRejected, match="can only be decoded whole"):
        BandReader(progressive)


def test_a_profile_of_rgb_pixels_is_kept(tmp_path: Path) -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert BandReader(save(tmp_path / "a.png", draw(), icc_profile=profile)).icc_profile == profile
    assert BandReader(save(tmp_path / "b.png", draw())).icc_profile is None
