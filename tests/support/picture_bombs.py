"""Small pictures that claim or decompress to a large size, and pictures with false or huge metadata."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from PIL import Image, PngImagePlugin

from tests.support.picture_surgery import jpeg_segment, split_jpeg
from tests.support.pictures import draw_person
from tests.support.whole_pictures import PNG_START, SIZE, png, png_chunk, save, whole_files

XML_BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "&%c;&%c;&%c;&%c;&%c;&%c;&%c;&%c;">' % ((c, *[c - 1] * 8)) for c in range(98, 110))
    + b'<!ENTITY e SYSTEM "file:///etc/passwd">]><x:xmpmeta xmlns:x="adobe:ns:meta/">&m;&e;</x:xmpmeta>'
)


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
