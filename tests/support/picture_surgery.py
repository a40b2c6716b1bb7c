"""Pictures whose segments, chunks, boxes, directories or headers were changed, one kind of file at a time."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from tests.support.whole_pictures import PNG_START, SIZE, png, png_chunk, whole_files


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
