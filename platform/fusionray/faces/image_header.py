"""Kind, size and orientation of an encoded picture, read from its first bytes without decoding anything.

A picture of a few kilobytes can unpack to gigabytes; whoever takes files from strangers looks here first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

from PIL import Image as PillowImage

from fusionray.errors import ImageRejected

Kind = Literal["jpeg", "png", "webp", "bmp"]
_ORIENTATION_TAG = 0x0112
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD8)})


class Header(NamedTuple):
    """What the first bytes tell. `width` and `height` are as stored; `orientation` is EXIF's 1..8."""

    kind: Kind
    width: int
    height: int
    orientation: int


def read_header(data: bytes) -> Header:
    """Read the header of a JPEG, PNG, WebP or BMP picture, told apart by content.

    Raises:
        ImageRejected: "not_an_image" for other content, "damaged" for a header that breaks off or contradicts itself.
    """
    kind = recognise(data)
    try:
        width, height, exif = _READERS[kind](data)
    except (struct.error, IndexError) as error:
        raise ImageRejected("damaged", f"the {kind} header breaks off: {error}") from error
    if width <= 0 or height <= 0:
        raise ImageRejected("damaged", f"the {kind} header states a size of {width} x {height}")
    return Header(kind, width, height, _orientation(exif))


def recognise(data: bytes) -> Kind:
    """Tell the kind of a picture by its first bytes.

    Raises:
        ImageRejected: "not_an_image".
    """
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    # Two letters are weak evidence; the reserved words of the file header must be zero as well.
    if data[:2] == b"BM" and data[6:10] == b"\0\0\0\0":
        return "bmp"
    state = "the file is empty" if not data else f"it begins with {data[:8]!r}"
    raise ImageRejected("not_an_image", f"not a JPEG, PNG, WebP or BMP picture: {state}")


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """List marker, start and end of the segments before the pixels."""
    position = 2
    while True:
        if data[position] != 0xFF:
            raise IndexError(f"no marker at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF or marker in _JPEG_BARE:
            position += 1 if marker == 0xFF else 2
            continue
        if marker in {0xD9, 0xDA}:
            return
        (length,) = struct.unpack_from(">H", data, position + 2)
        yield marker, position + 4, position + 2 + length
        position += 2 + max(length, 2)


def _read_jpeg(data: bytes) -> tuple[int, int, bytes]:
    exif = b""
    for marker, start, end in _jpeg_segments(data):
        if marker == 0xE1 and not exif and data[start : start + 6] == b"Exif\0\0":
            exif = data[start:end]
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, start + 1)
            return width, height, exif
    raise IndexError("no frame before the pixels")


def _read_png(data: bytes) -> tuple[int, int, bytes]:
    width, height = struct.unpack_from(">II", data, 16)
    position, exif = 8, b""
    while position + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, position)
        if name == b"eXIf":
            exif = b"Exif\0\0" + data[position + 8 : position + 8 + length]
        position += 12 + length
    return width, height, exif


def _read_webp(data: bytes) -> tuple[int, int, bytes]:
    form = data[12:16]
    if form == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        return width, height, b""
    if form == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, b""
    if form != b"VP8X":
        raise IndexError(f"unknown first chunk {form!r}")
    width, height = (int.from_bytes(data[start : start + 3], "little") + 1 for start in (24, 27))
    position, exif = 12, b""
    while position + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, position)
        if name == b"EXIF":
            exif = data[position + 8 : position + 8 + length]
        position += 8 + length + length % 2
    return width, height, exif


def _read_bmp(data: bytes) -> tuple[int, int, bytes]:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return width, abs(height), b""  # a negative height says that the top row comes first


_READERS = {"jpeg": _read_jpeg, "png": _read_png, "webp": _read_webp, "bmp": _read_bmp}


def _orientation(exif: bytes) -> int:
    """Read the EXIF orientation; 1 (upright) where there is none, or where the block is beyond reading."""
    if not exif:
        return 1
    block = PillowImage.Exif()
    try:
        block.load(exif)
        value = block.get(_ORIENTATION_TAG, 1)
    except (SyntaxError, ValueError, OSError, KeyError, IndexError, TypeError, struct.error, RuntimeError):
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1
