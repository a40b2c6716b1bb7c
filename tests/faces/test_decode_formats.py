"""Formats beside JPEG, PNG and WebP: HEIC, AVIF, Netpbm, TIFF, and those that are not read."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from PIL import Image as PillowImage

from fusionray.errors import ImageRejected
from fusionray.faces.image_files.decode import ImageLimits, decode_image
from fusionray.faces.image_files.headers.image_header import read_header
from tests.faces.test_decode import gradient, reason_of, saved
from tests.support.pictures import draw_person
from tests.support.whole_pictures import HEIC_FOLDER


@pytest.mark.parametrize(
    ("name", "turned"),
    [("plain", False), ("alpha", False), ("turned", True), ("grid", True)],
    ids=str,
)
def test_heic_pictures_are_decoded_and_turned_once(name: str, turned: bool) -> None:
    """An alpha plane, a rotation that EXIF data state too, and four tiles with a rotation, as phones write them."""
    data = (HEIC_FOLDER / f"{name}.heic").read_bytes()
    sizes = {"plain": (160, 160), "alpha": (64, 64), "turned": (96, 128), "grid": (100, 120)}
    person = PillowImage.fromarray(draw_person(1, 160)).resize(sizes[name])
    expected = person.transpose(PillowImage.Transpose.ROTATE_270) if turned else person
    header, decoded = read_header(data), decode_image(data)
    assert (header.width, header.height) == expected.size
    assert decoded.shape == np.asarray(expected).shape
    assert np.abs(decoded.astype(int) - np.asarray(expected)).mean() < 4


@pytest.mark.parametrize("name", ["plain", "alpha", "turned", "grid"])
def test_damaged_heic_pictures_are_decoded_or_refused(name: str) -> None:
    data = (HEIC_FOLDER / f"{name}.heic").read_bytes()
    for kept in np.linspace(1, len(data) * 0.9, 60).astype(int):
        assert reason_of(data[:kept]) in {"damaged", "not_an_image", "too_small"}
    generator = np.random.default_rng(2)
    for _ in range(300):
        scrambled = bytearray(data)
        for place in generator.integers(0, generator.choice([100, 700, len(data)]), 6):
            scrambled[place] = generator.integers(0, 256)
        with contextlib.suppress(ImageRejected):
            assert decode_image(bytes(scrambled), ImageLimits(max_pixels=10**6)).shape[2] == 3


@pytest.mark.parametrize("name", ["plain", "grid", "avif"])
def test_coded_data_cannot_be_larger_than_the_file_states(name: str) -> None:
    """A decoder allocates what the coded data state: 64 x 64 in the file must not become more in it."""
    if name == "avif":
        data = saved(PillowImage.new("RGB", (800, 600)), "AVIF")
    else:
        data = (HEIC_FOLDER / f"{name}.heic").read_bytes()
    place = data.rindex(b"ispe")
    # The last size is that of the tiles, which have 64 x 64 pixels, and may not be much larger than the picture.
    side = 2000 if name == "grid" else 60
    stated = data[: place + 8] + struct.pack(">II", side, side) + data[place + 16 :]
    assert reason_of(stated, ImageLimits(max_pixels=100_000)) == "damaged"


@pytest.mark.parametrize("largest", [1, 100, 255, 1000, 65_535])
def test_every_kind_of_netpbm_picture_is_decoded(largest: int) -> None:
    pixels = gradient(20, 30) if largest > 1 else (gradient(20, 30) > 100).astype(np.uint8) * 255
    values = np.rint(pixels.astype(float) * largest / 255).astype(int)
    expected = np.rint(values * (255 / largest)).astype(np.uint8)
    grey = np.repeat(expected[..., :1], 3, axis=2)
    kind = ">u2" if largest > 255 else "u1"

    def write(number: int, body: bytes, *more: int) -> bytes:
        words = b" ".join(b"%d" % value for value in (30, 20, *more))
        return b"P%d\n# a comment\n" % number + words + b"\n" + body

    def digits(values: np.ndarray) -> bytes:
        return b" ".join(b"%d" % value for value in values.reshape(-1))

    assert np.array_equal(decode_image(write(6, values.astype(kind).tobytes(), largest)), expected)
    assert np.array_equal(decode_image(write(5, values[..., 0].astype(kind).tobytes(), largest)), grey)
    assert np.array_equal(decode_image(write(3, digits(values) + b" # the end", largest)), expected)
    assert np.array_equal(decode_image(write(2, digits(values[..., 0]), largest)), grey)
    assert reason_of(write(2, digits(values[:-1, :, 0]), largest)) == "damaged"
    if largest == 1:
        black = 1 - values[..., 0]
        assert np.array_equal(decode_image(write(4, np.packbits(black, axis=1).tobytes())), grey)
        assert np.array_equal(decode_image(write(1, digits(black))), grey)
        assert np.array_equal(decode_image(write(1, digits(black).replace(b" ", b""))), grey)
    else:
        assert reason_of(write(5, values[..., 0].astype(kind).tobytes(), largest // 2)) == "damaged"


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16"])
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_deflate"])
def test_each_kind_of_tiff_is_decoded_as_its_png(mode: str, compression: str) -> None:
    grey = PillowImage.fromarray(gradient()).convert("L")
    deep = PillowImage.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    picture = deep if mode == "I;16" else PillowImage.fromarray(gradient()).convert(mode)
    expected = picture.convert("RGB") if mode == "CMYK" else picture
    second = PillowImage.new(picture.mode, (400, 300))
    data = saved(picture, "TIFF", compression=compression, save_all=True, append_images=[second])
    assert np.array_equal(decode_image(data), decode_image(saved(expected, "PNG")))


def write_deep_tiff(grey: np.ndarray, bits: int, *, white_is_zero: bool = False) -> bytes:
    """Write grey of 12 bits, which are packed, or of 16, as a TIFF in one strip. Source: TIFF 6.0, section 8."""
    first, second = grey.reshape(-1, 2).astype(np.uint16).T
    packed = np.stack([first >> 4, ((first & 15) << 4) | (second >> 8), second & 255], axis=1).astype(np.uint8)
    data = packed.tobytes() if bits == 12 else grey.astype("<u2").tobytes()
    rows, columns = grey.shape
    kinds = {256: columns, 257: rows, 258: bits, 259: 1, 262: 0 if white_is_zero else 1, 273: 8, 277: 1, 278: rows}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in {**kinds, 279: len(data)}.items())
    directory = struct.pack("<H", len(kinds) + 1) + entries + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory


@pytest.mark.parametrize("bits", [12, 16])
def test_deep_grey_of_a_tiff_has_its_own_bits_and_its_own_white(bits: int) -> None:
    grey = np.asarray(PillowImage.fromarray(gradient()).convert("L")).astype(np.uint16)
    deep = grey << (bits - 8)
    assert np.array_equal(decode_image(write_deep_tiff(deep, bits)), np.repeat(grey[..., None], 3, axis=2))
    inverted = write_deep_tiff(deep, bits, white_is_zero=True)
    if bits == 16:
        assert np.array_equal(decode_image(inverted), np.repeat(255 - grey[..., None], 3, axis=2))
    else:
        # Pillow does not read it.
        assert reason_of(inverted) == "damaged"


def test_a_tiff_that_claims_more_than_it_has_is_refused() -> None:
    data = saved(PillowImage.fromarray(gradient()), "TIFF", tiffinfo={270: "words"})
    (start,) = struct.unpack_from("<I", data, 4)
    place = data.index(struct.pack("<HH", 270, 2), start)
    assert decode_image(data).shape == (48, 64, 3)
    assert reason_of(data[: place + 4] + struct.pack("<I", 2**31) + data[place + 8 :]) == "damaged"
    assert reason_of(data[:start] + struct.pack("<H", 65_535) + data[start + 2 :] + bytes(12 * 65_535)) == "damaged"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (saved(PillowImage.fromarray(gradient()), "GIF"), "GIF"),
        (saved(PillowImage.fromarray(gradient()), "JPEG2000"), "JPEG 2000"),
        (saved(PillowImage.fromarray(gradient()), "ICO"), "ICO"),
        (b"8BPS\0\1" + bytes(60), "PSD"),
        (struct.pack(">I", 24) + b"ftypcrx " + bytes(60), "camera raw"),
        (b"II*\0\x10\0\0\0CR\2\0" + bytes(60), "camera raw"),
        (saved(PillowImage.fromarray(gradient()), "TIFF", tiffinfo={0xC612: b"\1\4\0\0"}), "raw picture"),
        (saved(PillowImage.fromarray(gradient()).convert("F"), "TIFF"), "floating-point"),
        (b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(60), "JPEG XL"),
        (b"<?xml version='1.0'?><svg></svg>", "SVG"),
        ((HEIC_FOLDER / "plain.heic").read_bytes().replace(b"hvc1", b"vvc1"), "vvc1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_known_format_that_is_not_read_is_named(data: bytes, name: str) -> None:
    with pytest.raises(ImageRejected, match=name) as caught:
        decode_image(data)
    assert caught.value.reason == "unknown_format"
