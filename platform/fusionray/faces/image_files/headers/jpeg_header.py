"""The segments of a JPEG: its size, its orientation, how many scans it has, and what of it is metadata."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from fusionray.faces.image_files.headers.exif_orientation import read_orientation

FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
# A marker between scans: not a stuffed byte (FF 00), a restart (FF D0..D7) or a fill byte (FF FF).
_NEXT_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])")
# A scan of 40 bytes processes every block of the picture again, so a file of a megabyte could take hours. Encoders
# write 10 scans; those that search for the smallest file write about 20.
MAX_SCANS = 64
# Each segment costs a step of Python. Photographs have about 20, ICC profiles and large XMP blocks up to 255 more.
MAX_SEGMENTS = 4096


def list_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and end of the segments, up to and including the start of the first scan."""
    position = 2
    for _ in range(MAX_SEGMENTS):
        if data[position] != 0xFF:
            raise IndexError(f"no marker at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF or marker in _BARE:
            position += 1 if marker == 0xFF else 2
            continue
        if marker < 0xC0 or marker == _END_OF_IMAGE:
            # Decoders skip invalid markers in different ways, so they could read another picture than this function.
            raise IndexError(f"no segment at byte {position}")
        (length,) = struct.unpack_from(">H", data, position + 2)
        if length < 2:
            raise IndexError(f"a segment of {length} bytes at byte {position}")
        yield marker, position + 4, position + 2 + length
        if marker == _START_OF_SCAN:
            return
        position += 2 + length
    raise IndexError(f"more than {MAX_SEGMENTS} segments before the pixels")


def read_jpeg(data: bytes) -> tuple[int, int, int]:
    """Read width, height and EXIF orientation.

    Raises: IndexError or struct.error for a header that breaks off or contradicts itself.
    """
    exif, size, progressive = b"", None, False
    for marker, start, end in list_segments(data):
        if marker == 0xE1 and not exif and data[start : start + 6] == b"Exif\0\0":
            exif = data[start:end]
        if marker in FRAMES:
            if size is not None:
                raise IndexError("two frames")
            height, width = struct.unpack_from(">HH", data, start + 1)
            size = width, height
            progressive = marker in _PROGRESSIVE
        if marker == _START_OF_SCAN and size is not None:
            if progressive:
                _count_scans(data, end)
            return *size, read_orientation(exif)
    raise IndexError("no frame before the pixels")


def _count_scans(data: bytes, position: int) -> None:
    """Refuse a progressive picture with more scans than encoders write; `position` follows the first scan's header."""
    num_scans = 1
    for _ in range(MAX_SEGMENTS):
        found = _NEXT_MARKER.search(data, position)
        if found is None or found[1][0] == _END_OF_IMAGE:
            return
        num_scans += found[1][0] == _START_OF_SCAN
        if num_scans > MAX_SCANS:
            raise IndexError(f"more than {MAX_SCANS} scans")
        (length,) = struct.unpack_from(">H", data, found.end())
        position = found.end() + length
    raise IndexError(f"more than {MAX_SEGMENTS} segments among the pixels")


def strip_jpeg(data: bytes) -> bytes:
    """Remove the metadata of a JPEG: EXIF, XMP, ICC and comments; keep JFIF and Adobe's colour transform."""
    kept, start_of_scan = [data[:2]], len(data)
    for marker, start, end in list_segments(data):
        if marker == _START_OF_SCAN:
            start_of_scan = start - 4
            break
        if marker in {0xE0, 0xEE} or not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            kept.append(data[start - 4 : end])
    return b"".join(kept) + data[start_of_scan:]
