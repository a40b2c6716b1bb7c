"""Malformed pictures: truncated, corrupted, with false metadata, or other files. All are seeded."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from tests.support.pictures import draw_person

SIZE = 160
# Rendered people, coded by libheif and x265, which the tests do not need: whole, with alpha, turned, in four tiles.
HEIC_FOLDER = Path(__file__).with_name("heic")
PNG_START = b"\x89PNG\r\n\x1a\n"
XML_BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "&%c;&%c;&%c;&%c;&%c;&%c;&%c;&%c;">' % ((c, *[c - 1] * 8)) for c in range(98, 110))
    + b'<!ENTITY e SYSTEM "file:///etc/passwd">]><x:xmpmeta xmlns:x="adobe:ns:meta/">&m;&e;</x:xmpmeta>'
)


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


def split_png(data: bytes) -> list[tuple[bytes, bytes]]:
    parts, position = [], len(PNG_START)
    while position < len(data):
        length, name = struct.unpack_from(">I4s", data, position)
        parts.append((name, data[position + 8 : position + 8 + length]))
        position += 12 + length
    return parts


def png_surgery() -> Iterator[bytes]:
    for kind in ("png", "palette png", "interlaced png"):
        parts = split_png(whole_files()[kind])
        chunks = [png_chunk(*part) for part in parts]
        for index, (name, body) in enumerate(parts):
            before, after = b"".join(chunks[:index]), b"".join(chunks[index + 1 :])
            replaced = [
                b"",
                chunks[index] * 2,
                png_chunk(name, body, crc=1),
                png_chunk(name, b""),
                png_chunk(name, body * 2),
            ]
            replaced += [
                png_chunk(other, body) for other in (b"IHDR", b"IDAT", b"PLTE", b"tRNS", b"eXIf", b"ABCD", b"\0\0\0\0")
            ]
            replaced += [
                struct.pack(">I", length) + chunks[index][4:] for length in (0, 1, len(body) + 1, 2**31, 2**32 - 1)
            ]
            yield from (PNG_START + before + middle + after for middle in replaced)
        yield PNG_START + b"".join(reversed(chunks))
        yield PNG_START + b"".join(chunks[:1] * 2000 + chunks[1:])
    rows = bytes(64 * (64 * 8 + 1))
    for depth in (0, 1, 2, 4, 8, 16, 32):
        for colour in range(8):
            yield from (png((64, 64), depth, colour, rows, interlaced=interlaced) for interlaced in (0, 1, 7))
    for size in ((0, 0), (0, 64), (64, 0), (1, 1), (15, 400), (2**31, 1), (2**32 - 1, 2**32 - 1), (65_535, 65_535)):
        yield png(size, 8, 2, rows)


def split_jpeg(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    segments, position = [], 2
    while data[position + 1] != 0xDA:
        (length,) = struct.unpack_from(">H", data, position + 2)
        segments.append((data[position + 1], data[position + 4 : position + 2 + length]))
        position += 2 + length
    return segments, data[position:]


def jpeg_segment(marker: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2 if length is None else length) + body


def jpeg_surgery() -> Iterator[bytes]:
    for kind in ("jpeg", "progressive jpeg", "cmyk jpeg"):
        segments, scans = split_jpeg(whole_files()[kind])
        whole = [jpeg_segment(*segment) for segment in segments]
        for index, (marker, body) in enumerate(segments):
            before, after = b"\xff\xd8" + b"".join(whole[:index]), b"".join(whole[index + 1 :]) + scans
            replaced = [b"", whole[index] * 2, whole[index] * 30, b"\xff" * 50 + whole[index], b"\xff\0" + whole[index]]
            replaced += [jpeg_segment(marker, body, length) for length in (0, 1, 2, 3, len(body) + 3, 65_535)]
            replaced += [jpeg_segment(marker, body[:-1] + b"\xff"), jpeg_segment(marker, b"\xff" * len(body))]
            yield from (before + middle + after for middle in replaced)
            if 0xC0 <= marker <= 0xC2:
                # Lossless, hierarchical and arithmetic kinds; invalid sizes and components.
                yield from (before + jpeg_segment(other, body) + after for other in range(0xC0, 0xD0))
                for height, width in ((0, 0), (0, 64), (64, 0), (1, 1), (65_535, 65_535), (SIZE * 2, SIZE)):
                    yield before + jpeg_segment(marker, body[:1] + struct.pack(">HH", height, width) + body[5:]) + after
                yield from (
                    before + jpeg_segment(marker, bytes([bits]) + body[1:]) + after for bits in (0, 1, 12, 16, 255)
                )
                yield from (
                    before + jpeg_segment(marker, body[:5] + bytes([n]) + body[6:]) + after for n in (0, 2, 4, 255)
                )
                sampling = (0x00, 0x14, 0x41, 0x44, 0xFF)
                yield from (before + jpeg_segment(marker, body[:7] + bytes([s]) + body[8:]) + after for s in sampling)
        yield b"\xff\xd8" + b"".join(reversed(whole)) + scans
        yield b"\xff\xd8" + b"".join(whole) + b"\xff\xd9"
        yield b"\xff\xd8" + b"".join(whole) + scans[:12] + b"\xff\xd9"


def webp_surgery() -> Iterator[bytes]:
    for kind in ("webp", "lossless webp", "extended webp"):
        data = whole_files()[kind]
        (length,) = struct.unpack_from("<I", data, 16)
        first = 20 + length + length % 2
        for value in (0, 1, 7, length - 1, length + 1, 2**16, 2**31, 2**32 - 1):
            yield data[:16] + struct.pack("<I", value) + data[20:]
            yield data[:4] + struct.pack("<I", value) + data[8:]
        for name in (b"VP8 ", b"VP8L", b"VP8X", b"ANIM", b"ANMF", b"ALPH", b"ICCP", b"EXIF", b"\0\0\0\0"):
            yield data[:12] + name + data[16:]
            yield data + name + struct.pack("<I", 2**32 - 1) + bytes(8)
            yield data[:12] + name + struct.pack("<I", 0) + data[12:]
        yield data[:12] + data[12:first] * 2 + data[first:]
        yield data[:12] + data[first:]
        for place in range(20, 31):
            yield from (data[:place] + bytes([value]) + data[place + 1 :] for value in (0, 0x3F, 0x80, 0xFF))


def bmp_surgery() -> Iterator[bytes]:
    data = whole_files()["bmp"]
    extremes = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)
    for place in (2, 10, 14, 18, 22, 30, 34, 46, 50):
        yield from (data[:place] + struct.pack("<I", value) + data[place + 4 :] for value in extremes)
    for bits in (0, 1, 2, 3, 4, 8, 15, 16, 24, 32, 64, 65_535):
        for compression in range(7):
            yield data[:28] + struct.pack("<HI", bits, compression) + data[34:]
    yield from (data[:14] + struct.pack("<I", length) + data[18:] for length in (12, 16, 52, 56, 64, 108, 124, 4096))


def box_surgery() -> Iterator[bytes]:
    """Change the type, the length and every number of the boxes of AVIF and HEIC files."""
    rng = random.Random(13)
    for kind in ("avif", "heic", "tiled heic"):
        data = whole_files()[kind]
        names = (b"ftyp", b"meta", b"pitm", b"iloc", b"iinf", b"infe", b"iprp", b"ipco", b"ipma", b"ispe", b"irot",
                 b"mdat", b"hvcC", b"av1C", b"iref", b"dimg", b"idat", b"auxC", b"Exif", b"hvc1", b"av01", b"grid",
                 )  # fmt: skip
        for name in names:
            place = data.find(name)
            if place < 4:
                continue
            yield data[:place] + b"\0\0\0\0" + data[place + 4 :]
            yield data[:place] + rng.choice(names) + data[place + 4 :]
            for value in (0, 1, 7, 8, 2**16, 2**31, 2**32 - 1):
                yield data[: place - 4] + struct.pack(">I", value) + data[place:]
            for distance in range(4, 20, 2):
                for value in (0, 1, 255, 65_535):
                    end = place + distance + 2
                    yield data[: end - 2] + struct.pack(">H", value) + data[end:]
        meta = data[data.index(b"meta") - 4 : data.index(b"mdat") - 4]
        yield data.replace(meta, meta * 2)
        yield data.replace(meta, b"")
        yield data.replace(meta, b"") + meta


def tiff_surgery() -> Iterator[bytes]:
    """Change every entry of the directory: its tag, type, count and value."""
    for kind in ("tiff", "packed tiff"):
        data = whole_files()[kind]
        (start,) = struct.unpack_from("<I", data, 4)
        (num_entries,) = struct.unpack_from("<H", data, start)
        for place in range(start + 2, start + 2 + 12 * num_entries, 12):
            yield from (data[:place] + struct.pack("<H", tag) + data[place + 2 :] for tag in (0, 256, 273, 330, 50_706))
            yield from (data[: place + 2] + struct.pack("<H", n) + data[place + 4 :] for n in (0, 3, 5, 13, 65_535))
            yield from (data[: place + 4] + struct.pack("<I", n) + data[place + 8 :] for n in (0, 2, 9999, 2**32 - 1))
            for value in (0, 1, 5, 8, 64, 32_803, 2**16 - 1, 2**31, 2**32 - 1):
                yield data[: place + 8] + struct.pack("<I", value) + data[place + 12 :]
        yield from (data[:4] + struct.pack("<I", n) + data[8:] for n in (0, 4, 8, start - 1, len(data), 2**32 - 1))
        yield from (data[:start] + struct.pack("<H", n) + data[start + 2 :] for n in (0, 1, 5, num_entries + 1, 65_535))
        yield b"MM\0*" + data[4:]


def netpbm_surgery() -> Iterator[bytes]:
    """Write headers and bodies that do not fit each other."""
    bodies = (
        b"",
        bytes(64 * 64 * 3),
        b"\xff" * 64 * 64 * 6,
        b"1 " * 64 * 64 * 3,
        b"9 x 9" * 4000,
        b"-1 99999999999 " * 9000,
    )
    heads = (
        b"64 64 255",
        b"64 64 1",
        b"64 64 65535",
        b"64 64 65536",
        b"64 64 0",
        b"64 0 255",
        b"0 64 255",
        b"64",
        b"64 64",
        b"16000 16000 255",
        b"999999999 999999999 255",
        b"-64 64 255",
        b"64 # c\n64 # c\r255",
        b"64 64 # no end",
        b"#",
    )
    for number in range(8):
        for head in heads:
            yield from (b"P%d " % number + head + b"\n" + body for body in bodies)


def bombs(num_bytes: int = 150_000) -> Iterator[bytes]:
    """Small files that claim a large size or decompress to one."""
    zeros = zlib.compress(bytes(num_bytes * 900), 9)
    for side in (16_000, 60_000, 2**31 - 1):
        for interlaced in (0, 1):
            yield png((side, side), 8, 6, bytes(10_000), interlaced=interlaced)
    small = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    start = PNG_START + png_chunk(b"IHDR", small)
    pixels, end = png_chunk(b"IDAT", zlib.compress(bytes(64 * 193))), png_chunk(b"IEND", b"")
    # Text, profiles and pixels that decompress to 130 MB.
    for body in (b"zTXtk\0\0", b"iTXtk\0\1\0\0\0", b"iCCPk\0\0"):
        yield start + png_chunk(body[:4], body[4:] + zeros) + pixels + end
        yield start + pixels + png_chunk(body[:4], body[4:] + zeros) + end
    yield start + png_chunk(b"IDAT", zeros) + end
    yield start + png_chunk(b"eXIf", exif_block(4000, 100_000)) + pixels + end
    yield start + png_chunk(b"tEXt", b"") * 30_000 + pixels + end
    yield PNG_START + png_chunk(b"IHDR", small) + png_chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)) + pixels + end
    for side in (16_384, 2**24):
        canvas = (side - 1).to_bytes(3, "little") * 2
        body = b"VP8X" + struct.pack("<II", 10, 2) + canvas + whole_files()["lossless webp"][12:]
        yield b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
    lossless = whole_files()["lossless webp"]
    yield lossless[:21] + struct.pack("<I", 2**28 - 1) + lossless[25:]
    jpeg = whole_files()["progressive jpeg"]
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    yield jpeg[:-2] + scan * (num_bytes // len(scan)) + b"\xff\xd9"
    segments, scans = split_jpeg(whole_files()["jpeg"])
    for marker in (0xC0, 0xC1, 0xC2, 0xC9):
        size = [(marker if 0xC0 <= m <= 0xC2 else m, b"\x08\xff\xdc\xff\xdc" + b[5:] if 0xC0 <= m <= 0xC2 else b)
                for m, b in segments]  # fmt: skip
        yield b"\xff\xd8" + b"".join(jpeg_segment(*segment) for segment in size) + scans
    yield b"\xff\xd8" + b"\xff" * num_bytes
    yield b"\xff\xd8\xff" + b"\xd0\xff" * (num_bytes // 2)
    yield b"\xff\xd8" + jpeg_segment(0xFE, b"") * (num_bytes // 4) + whole_files()["jpeg"][2:]
    bmp = whole_files()["bmp"]
    yield from (bmp[:18] + struct.pack("<ii", side, side) + bmp[26:] for side in (30_000, -30_000, 2**31 - 1))
    for kind in ("avif", "heic", "tiled heic"):
        data = whole_files()[kind]
        for place in [n for n in range(len(data)) if data.startswith(b"ispe", n)]:
            for size in ((16_000, 16_000), (2**31, 2**31), (16, 16), (64, 64)):
                yield data[: place + 8] + struct.pack(">II", *size) + data[place + 16 :]
        yield data[:16] + b"mif1" * num_bytes
        yield data + struct.pack(">I4s", 8, b"free") * (num_bytes // 8)
    for size in ((60_000, 60_000), (16_000, 16_000), (2**31, 1)):
        yield (
            b"II*\0" + struct.pack("<IH", 8, 2) + b"".join(struct.pack("<HHII", 256 + n, 4, 1, size[n]) for n in (0, 1))
        )
        yield b"P6 %d %d 255\n" % size + bytes(num_bytes)
    yield b"II*\0" + struct.pack("<IH", 8, 65_535) + struct.pack("<HHII", 700, 1, num_bytes, 8) * (num_bytes // 12)
    yield b"P3" + b" # comment\n" * (num_bytes // 11) + b"64 64 255\n"
    yield b"P3 64 64 255\n" + b"#\n" * (num_bytes // 2)
    yield gzip_like(zeros)


def gzip_like(data: bytes) -> bytes:
    return b"\x1f\x8b\x08\0\0\0\0\0\0\3" + data[2:-4]


def exif_block(num_tags: int, claimed: int, orientation: int = 1) -> bytes:
    entries = [struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)]
    entries += [struct.pack("<HHII", tag, 1, claimed, 8) for tag in range(0x200, 0x200 + num_tags)]
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)


def metadata() -> Iterator[bytes]:
    """Add false, looping or huge metadata to valid pictures."""
    file = whole_files()["jpeg"]

    def beside(*bodies: tuple[int, bytes]) -> bytes:
        return file[:2] + b"".join(jpeg_segment(marker, body) for marker, body in bodies) + file[2:]

    exif = b"Exif\0\0"
    for orientation in (*range(10), 255, 65_535):
        yield beside((0xE1, exif + exif_block(0, 0, orientation)))
    yield beside((0xE1, exif + exif_block(4000, 2**32 - 1)))
    yield beside(*[(0xE1, exif + exif_block(4000, 60_000))] * 5)
    for kind in range(16):
        entry = struct.pack("<HHII", 0x0112, kind, 2**32 - 1, 8)
        yield beside((0xE1, exif + b"II*\0" + struct.pack("<IH", 8, 1) + entry + struct.pack("<I", 8)))
    for offset in (0, 4, 9, 2**31, 2**32 - 1):
        yield beside((0xE1, exif + b"MM\0*" + struct.pack(">IH", offset, 65_535)))
    for junk in (b"", b"II", b"II*\0", b"II+\0\x08\0\0\0\0\0\0\0", b"\xff" * 60_000, bytes(65_000)):
        yield beside((0xE1, exif + junk))
    xmp = b"http://ns.adobe.com/xap/1.0/\0"
    yield beside((0xE1, xmp + XML_BOMB))
    yield beside(*[(0xE1, xmp + XML_BOMB * 30)] * 8)
    for number in range(0, 256, 51):
        yield beside((0xE2, b"ICC_PROFILE\0" + bytes([number, 255 - number]) + b"\xff" * 500))
    yield beside(*[(0xE2, b"ICC_PROFILE\0" + bytes([n, 255]) + b"\xff" * 1200) for n in range(1, 256)])
    yield beside((0xED, b"Photoshop 3.0\0" + b"8BIM\x03\xed\xff" + b"\xff" * 300))
    yield beside((0xED, b"Photoshop 3.0\0" + b"8BIM\0\0\0\0\xff\xff\xff\xff"))
    yield beside((0xE2, b"MPF\0" + exif_block(30, 60_000)), (0xEE, b"Adobe"), (0xEE, b"Adobe\0\x64\0\0\0\0\x02"))
    yield beside((0xE0, b"JFIF\0\xff\xff\xff\xff\xff\xff\xff\xff\xff"), (0xE0, b"JFXX\0\x10" + file))
    person = Image.fromarray(draw_person(1, SIZE))
    for text in (XML_BOMB, b"\xff\xfe" * 4000, b"\0" * 9000):
        info = PngImagePlugin.PngInfo()
        info.add(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + text)
        info.add(b"tEXt", b"k" * 200 + b"\0" + text)
        yield save(person, "PNG", pnginfo=info, exif=exif + exif_block(500, 9000), icc_profile=text[:300])
        yield save(person, "WEBP", exif=exif + exif_block(500, 9000), icc_profile=text[:300], xmp=text)


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
