"""Untrusted pictures are decoded upright, or refused with a reason before any pixel is decoded."""

from __future__ import annotations

import contextlib
import io
import struct
import time
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageOps

from fusionray.errors import ImageRejected
from fusionray.faces.image_files.decode import ImageLimits, choose_reduction, decode_image, encode_image, turn_upright
from fusionray.faces.image_files.headers.image_header import answer_format
from tests.support.malformed_pictures import CLASSES
from tests.support.picture_bombs import bombs
from tests.support.pictures import draw_person
from tests.support.whole_pictures import HEIC_FOLDER


def gradient(height: int = 48, width: int = 64) -> np.ndarray:
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([columns * 255 // width, rows * 255 // height, (rows + columns) % 200], axis=-1).astype(np.uint8)


def saved(picture: PillowImage.Image, image_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, image_format, **options)
    return buffer.getvalue()


def reason_of(data: bytes, limits: ImageLimits | None = None) -> str:
    with pytest.raises(ImageRejected) as caught:
        decode_image(data, limits)
    assert str(caught.value)
    return caught.value.reason


def png_claiming(width: int, height: int) -> bytes:
    """Make a decompression bomb: a PNG of a few bytes whose header states any size."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("image_format", ["PNG", "BMP", "WEBP", "JPEG", "AVIF", "TIFF", "PPM"])
def test_each_format_is_recognised_by_content_and_comes_back_as_rgb(image_format: str) -> None:
    lossy = {"quality": 98, "subsampling": "4:4:4"}
    options = {"JPEG": lossy, "AVIF": lossy, "WEBP": {"lossless": True}}.get(image_format, {})
    decoded = decode_image(saved(PillowImage.fromarray(gradient()), image_format, **options))
    assert decoded.dtype == np.uint8
    assert decoded.shape == (48, 64, 3)
    assert decoded.flags.writeable
    assert np.abs(decoded.astype(int) - gradient()).mean() < (1.5 if options is lossy else 1e-9)


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "AVIF", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_honoured_as_pillow_does(image_format: str, orientation: int) -> None:
    picture = PillowImage.fromarray(gradient())
    exif = PillowImage.Exif()
    exif[0x0112] = orientation
    data = saved(picture, image_format, exif=exif)
    with PillowImage.open(io.BytesIO(data)) as opened:
        opened.load()  # which turns a TIFF
        expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    assert np.abs(decode_image(data).astype(int) - expected).mean() < 1.0


def test_a_picture_with_a_broken_exif_block_is_decoded() -> None:
    data = saved(PillowImage.fromarray(gradient()), "JPEG", exif=b"Exif\0\0not a tiff header at all")
    assert decode_image(data).shape == (48, 64, 3)


def test_grey_palette_alpha_cmyk_and_16_bit_become_rgb() -> None:
    grey = PillowImage.fromarray(gradient()).convert("L")
    as_grey = np.repeat(np.asarray(grey)[..., None], 3, axis=2)
    assert np.array_equal(decode_image(saved(grey, "PNG")), as_grey)
    assert np.abs(decode_image(saved(grey, "JPEG", quality=98)).astype(int) - as_grey).mean() < 1.5
    deep = PillowImage.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    assert np.array_equal(decode_image(saved(deep, "PNG")), as_grey)
    palette = PillowImage.fromarray(gradient()).quantize(64)
    assert np.array_equal(decode_image(saved(palette, "PNG")), np.asarray(palette.convert("RGB")))
    cmyk = PillowImage.fromarray(gradient()).convert("CMYK")
    assert np.abs(decode_image(saved(cmyk, "JPEG", quality=98)).astype(int) - gradient()).mean() < 4
    clear = PillowImage.new("RGBA", (32, 32), (255, 0, 0, 0))
    assert np.array_equal(decode_image(saved(clear, "PNG")), np.full((32, 32, 3), 255, np.uint8))
    bits = PillowImage.fromarray(gradient()).convert("1")
    assert set(np.unique(decode_image(saved(bits, "PNG")))) == {0, 255}


def test_other_content_than_a_picture_is_refused() -> None:
    assert reason_of(b"") == "not_an_image"
    assert reason_of(b"hello, this is a letter") == "not_an_image"
    assert reason_of(struct.pack(">I", 24) + b"ftypisom" + bytes(200)) == "not_an_image"
    assert reason_of(b"BM and the rest of a shopping list") == "not_an_image"


def test_size_limits_hold_before_anything_is_decoded() -> None:
    assert reason_of(png_claiming(60_000, 60_000)) == "too_large"
    assert reason_of(png_claiming(20_000, 20)) == "too_large"
    assert reason_of(png_claiming(8, 400)) == "too_small"
    assert reason_of(png_claiming(0, 400)) == "damaged"
    data = saved(PillowImage.fromarray(gradient()), "PNG")
    assert reason_of(data, ImageLimits(max_bytes=len(data) - 1)) == "too_large"
    assert decode_image(data, ImageLimits(max_bytes=len(data), max_pixels=48 * 64)).shape == (48, 64, 3)


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "BMP", "AVIF", "TIFF", "PPM"])
def test_a_truncated_picture_is_refused_at_every_length(image_format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    data = saved(PillowImage.fromarray(noise), image_format)
    for kept in np.linspace(1, len(data) * 0.9, 60).astype(int):
        assert reason_of(data[:kept]) in {"damaged", "not_an_image", "too_large", "too_small"}


def test_no_picture_shows_what_its_memory_held_before() -> None:
    generator = np.random.default_rng(2)
    # Large enough for memory that is used again.
    picture = np.kron(generator.integers(0, 256, (16, 20, 3)), np.ones((40, 40, 1))).astype(np.uint8)
    light, black, data = (
        saved(PillowImage.fromarray(each), "JPEG") for each in (np.full_like(picture, 255), 0 * picture, picture)
    )

    def decode_after(other: bytes, damaged: bytes) -> bytes:
        decode_image(other)
        return decode_image(damaged).tobytes()

    shown = 0
    for place in generator.integers(640, len(data) - 2, 120).tolist():
        flipped = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        for damaged in (flipped, data[:place], data[:place] + b"\xff\xd9"):
            with contextlib.suppress(ImageRejected):
                assert decode_after(light, damaged) == decode_after(black, damaged)
                shown += 1
    assert shown > 50


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "BMP", "AVIF", "TIFF", "PPM"])
def test_scrambled_bytes_never_raise_anything_but_a_refusal(image_format: str) -> None:
    generator = np.random.default_rng(1)
    data = np.frombuffer(saved(PillowImage.fromarray(gradient()), image_format), np.uint8)
    for _ in range(300):
        scrambled = data.copy()
        places = generator.integers(0, min(len(data), generator.choice([40, 700, len(data)])), 6)
        scrambled[places] = generator.integers(0, 256, 6)
        with contextlib.suppress(ImageRejected):
            assert decode_image(scrambled.tobytes(), ImageLimits(max_pixels=10**6)).shape[2] == 3


def test_a_jpeg_with_too_many_scans_is_refused_before_decoding() -> None:
    data = saved(PillowImage.fromarray(gradient()), "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    assert decode_image(data[:-2] + scan * 20 + b"\xff\xd9").shape == (48, 64, 3)
    assert reason_of(data[:-2] + scan * 100_000 + b"\xff\xd9") == "damaged"
    # What follows the picture, as in a motion photo, is none of its scans; a comment is no end.
    assert decode_image(data + scan * 1000).shape == (48, 64, 3)
    assert reason_of(data[:-2] + b"\xff\xfe\0\4\xff\xd9" + scan * 1000 + b"\xff\xd9") == "damaged"


@pytest.mark.parametrize("filler", [b"\xff\x00", b"\xff\x02", b"\xff\xbf"])
def test_a_jpeg_cannot_show_a_small_size_and_hide_a_large_one(filler: bytes) -> None:
    data = saved(PillowImage.new("RGB", (400, 300)), "JPEG")
    start = data.index(b"\xff\xda")
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, 64, 64, 3) + b"\1\x11\0\2\x11\1\3\x11\1"
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(frame)) + frame
    hidden = filler + struct.pack(">H", 2 + start - 2 + 4) + data[2:start]
    assert reason_of(data[:2] + hidden + comment + data[start:], ImageLimits(max_pixels=10_000)) == "damaged"


@pytest.mark.parametrize("sampling", [0x14, 0x41, 0x24, 0x42, 0x33, 0x00])
def test_a_jpeg_with_unusual_subsampling_is_decoded_or_refused(sampling: int) -> None:
    data = bytearray(saved(PillowImage.fromarray(gradient()), "JPEG"))
    data[data.index(b"\xff\xc0") + 11] = sampling
    with contextlib.suppress(ImageRejected):
        assert decode_image(bytes(data)).shape == (48, 64, 3)


def test_too_many_segments_or_chunks_are_refused_quickly() -> None:
    start = time.process_time()
    size = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    header = (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + size + struct.pack(">I", zlib.crc32(b"IHDR" + size))
    )
    text = struct.pack(">I4sI", 0, b"tEXt", zlib.crc32(b"tEXt"))
    assert reason_of(header + text * 2_000_000) == "damaged"
    assert (
        reason_of(b"RIFF\0\0\0\2WEBPVP8X\x0a" + bytes(7) + b"\x3f\0\0\x3f\0\0" + b"XMP \0\0\0\0" * 3_000_000)
        == "damaged"
    )
    assert reason_of(b"\xff\xd8\xff" + b"\xd0\xff" * 10_000_000) == "damaged"
    assert reason_of(b"\xff\xd8" + b"\xff" * 20_000_000) == "damaged"
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
def test_an_exif_block_that_claims_gigabytes_is_not_allocated(image_format: str) -> None:
    entries = [struct.pack("<HHII", tag, 1, 50_000, 8) for tag in range(0x200, 0x1200)]
    turned = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1 + len(entries)) + b"".join([turned, *entries]) + bytes(4)
    for mode in ("RGB", "CMYK") if image_format == "JPEG" else ("RGB",):
        data = saved(PillowImage.fromarray(gradient()).convert(mode), image_format, exif=exif)
        assert decode_image(data).shape == (64, 48, 3)


@pytest.mark.parametrize(
    "tail", [b"", b"II*\0", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff", b"XX" + bytes(20)]
)
def test_an_exif_block_that_breaks_off_means_upright(tail: bytes) -> None:
    data = saved(PillowImage.fromarray(gradient()), "JPEG", exif=b"Exif\0\0" + tail)
    assert decode_image(data).shape == (48, 64, 3)


@pytest.mark.parametrize("made", [*CLASSES.values(), bombs], ids=[*CLASSES, "bombs"])
def test_a_malformed_picture_is_decoded_or_refused(made: Callable[[], Iterator[bytes]]) -> None:
    for data in made():
        with contextlib.suppress(ImageRejected):
            assert decode_image(data, ImageLimits(max_pixels=10**6)).shape[2] == 3


@pytest.mark.parametrize("image_format", ["jpeg", "png", "webp"])
def test_an_encoded_picture_decodes_to_itself(image_format: str) -> None:
    decoded = decode_image(encode_image(gradient(), image_format, 98))
    assert np.abs(decoded.astype(int) - gradient()).mean() < (1e-9 if image_format == "png" else 4.0)


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ValueError, match="image_format: 'tiff'"):
        encode_image(gradient(), "tiff")  # type: ignore[arg-type]


def test_turning_a_picture_four_times_by_a_quarter_restores_it() -> None:
    image = gradient()
    turned = image
    for _ in range(4):
        turned = turn_upright(turned, 6)
    assert np.array_equal(turned, image)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_is_decoded_at_a_part_of_its_size(mode: str, orientation: int) -> None:
    exif = PillowImage.Exif()
    exif[0x0112] = orientation
    data = saved(PillowImage.fromarray(gradient(1030, 1400)).convert(mode), "JPEG", quality=95, exif=exif)
    assert choose_reduction(data, 512) == 2
    assert choose_reduction(data, 100) == 8
    whole, part = decode_image(data), decode_image(data, reduction=4)
    height, width = (-(-length // 4) for length in whole.shape[:2])
    assert part.shape == (height, width, 3)
    means = np.asarray(PillowImage.fromarray(whole).resize((width, height), PillowImage.Resampling.BOX))
    assert np.abs(part[8:-8, 8:-8].astype(int) - means[8:-8, 8:-8]).mean() < 4


def test_only_a_large_jpeg_is_reduced() -> None:
    picture = PillowImage.fromarray(gradient(700, 900))
    assert choose_reduction(saved(picture, "JPEG"), 512) == 1
    assert choose_reduction(saved(picture, "PNG"), 100) == 1


def test_the_format_of_an_answer_suits_its_target() -> None:
    picture = PillowImage.fromarray(gradient())
    answers = {
        kind: answer_format(saved(picture, kind)) for kind in ("JPEG", "PNG", "WEBP", "AVIF", "BMP", "TIFF", "PPM")
    }
    assert answers == {"JPEG": "jpeg", "PNG": "png", "WEBP": "webp", "AVIF": "jpeg"} | dict.fromkeys(
        ("BMP", "TIFF", "PPM"), "png"
    )
    assert answer_format((HEIC_FOLDER / "plain.heic").read_bytes()) == "jpeg"


def test_the_first_frame_of_an_animated_avif_is_decoded() -> None:
    first, second = (PillowImage.fromarray(draw_person(seed, 160)) for seed in (1, 2))
    data = saved(first, "AVIF", quality=90, save_all=True, append_images=[second], duration=40)
    assert data[8:12] == b"avis"
    assert np.abs(decode_image(data).astype(int) - np.asarray(first)).mean() < 3
