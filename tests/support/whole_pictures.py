"""Whole pictures of all kinds that a decoder handles differently, among them rare ones."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.pictures import draw_person

SIZE = 160
# Rendered people, coded by libheif and x265, which the tests do not need: whole, with alpha, turned, in four tiles.
HEIC_FOLDER = Path(__file__).with_name("heic")
PNG_START = b"\x89PNG\r\n\x1a\n"


def save(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


@lru_cache(maxsize=1)
def whole_files() -> dict[str, bytes]:
    """Encode one person in all ways that a decoder handles differently."""
    person = Image.fromarray(draw_person(1, SIZE))
    small = person.resize((64, 64))
    exif = Image.Exif()
    exif[0x0112] = 1
    return {
        "jpeg": save(person, "JPEG", quality=70),
        "progressive jpeg": save(person, "JPEG", quality=70, progressive=True, exif=exif),
        "cmyk jpeg": save(small.convert("CMYK"), "JPEG"),
        "png": save(small, "PNG"),
        "interlaced png": interlace(small),
        "palette png": save(small.quantize(32), "PNG", transparency=0),
        "webp": save(person, "WEBP", quality=70),
        "lossless webp": save(small, "WEBP", lossless=True),
        "extended webp": save(small.convert("RGBA"), "WEBP", exif=exif.tobytes(), icc_profile=bytes(200)),
        "bmp": save(small, "BMP"),
        "avif": save(person, "AVIF", quality=60, exif=exif, speed=9),
        "heic": (HEIC_FOLDER / "plain.heic").read_bytes(),
        "tiled heic": (HEIC_FOLDER / "grid.heic").read_bytes(),
        "tiff": save(small, "TIFF"),
        "packed tiff": save(small, "TIFF", compression="tiff_lzw", exif=exif),
        "pgm": save(small.convert("L"), "PPM"),
        "plain ppm": b"P3 # a comment\n64 64\n255\n" + b" ".join(b"%d" % n for n in np.asarray(small).reshape(-1)),
    }


def odd_but_right() -> Iterator[bytes]:
    """Encode a person in rare but valid ways, which the service must answer with a picture."""
    person = Image.fromarray(draw_person(1, SIZE))
    yield save(person.convert("CMYK"), "JPEG")
    yield save(person.convert("L"), "JPEG")
    yield save(person, "JPEG", progressive=True, subsampling=2)
    yield save(person, "JPEG", restart_marker_blocks=1)
    yield save(person.quantize(128), "PNG")
    yield save(person.convert("LA"), "PNG")
    yield save(Image.fromarray(np.asarray(person.convert("L")).astype(np.uint16) * 257), "PNG")
    yield interlace(person)
    yield png(person.size, 16, 2, b"".join(b"\0" + row.astype(">u2").tobytes() for row in np.asarray(person) * 257.0))
    other = person.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    yield save(person, "PNG", save_all=True, append_images=[other] * 3)
    yield save(person, "WEBP", save_all=True, append_images=[other] * 3, duration=40)
    yield save(person.convert("RGBA"), "WEBP", lossless=True)
    yield save(person, "BMP")
    yield save(person.quantize(128), "BMP")
    for kind in ("AVIF", "TIFF", "PPM"):
        yield save(person, kind)
        yield save(person.convert("L"), kind)
    yield save(person, "AVIF", save_all=True, append_images=[other], duration=40)
    yield save(person, "TIFF", save_all=True, append_images=[other], compression="tiff_deflate")
    yield whole_files()["heic"]


def png_chunk(name: bytes, body: bytes, crc: int | None = None) -> bytes:
    return (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body) if crc is None else crc)
    )


def png(size: tuple[int, int], depth: int, colour: int, rows: bytes, *, interlaced: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, interlaced)
    body = png_chunk(b"IDAT", zlib.compress(rows))
    return PNG_START + png_chunk(b"IHDR", header) + body + png_chunk(b"IEND", b"")


def interlace(picture: Image.Image) -> bytes:
    """Encode with Adam7 interlacing, which Pillow can read but not write."""
    pixels = np.asarray(picture.convert("RGB"))
    rows = b""
    for x, y, step_x, step_y in (
        (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)
    ):  # fmt: skip
        rows += b"".join(b"\0" + row.tobytes() for row in pixels[y::step_y, x::step_x])
    return png(picture.size, 8, 2, rows, interlaced=1)
