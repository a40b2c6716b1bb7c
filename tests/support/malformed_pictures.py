"""Malformed pictures: truncated, corrupted, with false metadata, or other files. All are seeded."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

from tests.support.picture_bombs import XML_BOMB, metadata
from tests.support.picture_surgery import (
    bmp_surgery,
    box_surgery,
    jpeg_surgery,
    netpbm_surgery,
    png_surgery,
    tiff_surgery,
    webp_surgery,
)
from tests.support.pictures import draw_person
from tests.support.whole_pictures import PNG_START, SIZE, save, whole_files


def cut_short() -> Iterator[bytes]:
    for data in whole_files().values():
        yield from (data[:length] for length in [*range(0, 34, 3), *np.linspace(34, len(data) - 1, 26).astype(int)])


def flipped() -> Iterator[bytes]:
    """Flip a few bits, most of them near the start, which holds the structure."""
    rng = random.Random(11)
    for data in whole_files().values():
        for _ in range(60):
            bent = bytearray(data)
            for _ in range(rng.choice([1, 1, 2, 8, 40])):
                bent[rng.randrange(min(len(bent), rng.choice([32, 200, 700, len(bent)])))] ^= 1 << rng.randrange(8)
            yield bytes(bent)


def spliced() -> Iterator[bytes]:
    """Remove, repeat, exchange and overwrite parts, also with parts of another file."""
    rng = random.Random(12)
    files = list(whole_files().values())
    for data in files:
        for _ in range(36):
            start = rng.randrange(len(data))
            end = start + rng.randrange(1, 300)
            other = rng.choice(files)
            place = rng.randrange(len(other))
            middle = rng.choice([b"", data[start:end] * 3, other[place : place + 200], rng.randbytes(64), b"\xff" * 90])
            yield data[:start] + middle + data[end:]


def extreme_shapes() -> Iterator[bytes]:
    """Draw pictures at the limits of size and content, and slightly beyond."""
    generator = np.random.default_rng(41)
    for height, width in (
        (16, 16_383), (16_383, 16), (16, 16), (17, 999), (999, 17), (16, 16_384), (15, 64), (64, 15), (1000, 1000),
        (1001, 1000)
    ):  # fmt: skip
        for pixels in (
            np.zeros((height, width, 3), np.uint8),
            np.full((height, width, 3), 255, np.uint8),
            generator.integers(0, 256, (height, 1, 3), np.uint8).repeat(width, axis=1),
            np.resize(draw_person(1, SIZE), (height, width, 3)),
        ):
            yield save(Image.fromarray(pixels), "JPEG", quality=40)
            yield save(Image.fromarray(pixels[..., 0]), "PNG")
    person = Image.fromarray(draw_person(1, SIZE))
    for size in ((16, 160), (160, 16), (24, 24), (1600, 100), (100, 1600), (5000, 190)):
        yield save(person.resize(size), "JPEG")
    for left, top in ((-80, 0), (80, 0), (0, -80), (0, 80), (-70, -70)):
        yield save(person.transform(person.size, Image.Transform.AFFINE, (1, 0, left, 0, 1, top)), "JPEG")


def polyglots() -> Iterator[bytes]:
    """Files of two kinds at once, or of another kind than pictures."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("../../etc/passwd", "root")
    script = b"<html><script>alert(document.domain)</script>"
    files = whole_files()
    for data in files.values():
        yield from (data + tail for tail in (archive.getvalue(), script, b"%PDF-1.7\n%%EOF", b"\0" * 9000, data))
        yield from (front + data for front in (script, b"%PDF-1.4\n", archive.getvalue(), b"\n", b"\xef\xbb\xbf"))
    yield b"GIF89a/*" + bytes(20) + b"*/=1;alert(1)//;"
    yield save(Image.fromarray(draw_person(1, 64)), "GIF")
    yield save(Image.fromarray(draw_person(1, 64)), "TIFF", compression="tiff_lzw")
    yield save(Image.fromarray(draw_person(1, 64)), "ICO")
    yield save(Image.fromarray(draw_person(1, 64)), "PPM")
    yield save(Image.fromarray(draw_person(1, 64)), "TGA")
    yield save(Image.fromarray(draw_person(1, 64)), "JPEG2000")
    yield b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg>&x;</svg>'
    yield XML_BOMB
    for brand in (b"heic", b"mif1", b"avif", b"crx ", b"isom"):
        yield struct.pack(">I", 24) + b"ftyp" + brand + bytes(12) + bytes(4000)
    starts = (
        b"",
        b"\0",
        b"hello",
        b"BM",
        b"BM" + bytes(60),
        b"RIFF\0\0\0\0WEBP",
        PNG_START,
        b"\xff\xd8\xff",
        b"8BPS\0\1",
    )
    yield from starts
    yield from (
        b"II*\0" + bytes(90),
        b"MM\0*" + bytes(90),
        b"%!PS-Adobe-3.0 EPSF\n",
        b"\x76\x2f\x31\x01",
        b"MZ" + bytes(99),
    )
    yield from (
        b"#!/bin/sh\nid\n",
        b"push graphic-context\nimage over 0,0 0,0 'https://127.0.0.1/x'\n",
        "雪🙂".encode() * 90,
    )
    yield from (bytes([value]) * 5000 for value in (0x00, 0x20, 0x41, 0x7F, 0x80, 0xFF))


CLASSES: dict[str, Callable[[], Iterator[bytes]]] = {
    "cut short": cut_short,
    "flipped bits": flipped,
    "spliced": spliced,
    "JPEG surgery": jpeg_surgery,
    "PNG surgery": png_surgery,
    "WebP surgery": webp_surgery,
    "BMP surgery": bmp_surgery,
    "AVIF and HEIC surgery": box_surgery,
    "TIFF surgery": tiff_surgery,
    "Netpbm surgery": netpbm_surgery,
    "metadata": metadata,
    "extreme shapes": extreme_shapes,
    "polyglots": polyglots,
}
