"""Read Netpbm pictures: PBM, PGM and PPM, plain (P1 to P3) and raw (P4 to P6), as old face sets have them.

Source: the manual pages pbm(5), pgm(5) and ppm(5) of Netpbm.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import Image

# The number behind the P, then width, height and, except in a PBM, the largest value. A comment may precede a number.
_GAP = rb"(?:[ \t\n\v\f\r]|#[^\r\n]{0,4096}[\r\n])"
_SIZE = re.compile(rb"P([1-6])(?:%s){1,64}([0-9]{1,9})(?:%s){1,64}([0-9]{1,9})" % (_GAP, _GAP))
_LARGEST_VALUE = re.compile(rb"(?:%s){1,64}([0-9]{1,5})" % _GAP)
_COMMENT = re.compile(rb"#[^\r\n]*")
_PLAIN_BODY = re.compile(rb"[0-9 \t\n\v\f\r]*")
BITMAPS, PIXMAPS, PLAIN = frozenset({1, 4}), frozenset({3, 6}), frozenset({1, 2, 3})


class NetpbmHeader(NamedTuple):
    """The header of a picture. `number` is that behind its P; pixels begin at byte `start`."""

    number: int
    width: int
    height: int
    largest: int
    start: int

    @property
    def channels(self) -> int:
        """Return the number of values of a pixel."""
        return 3 if self.number in PIXMAPS else 1


def read_netpbm(data: bytes) -> NetpbmHeader:
    """Read the header of a picture.

    Raises: IndexError if it is damaged, or states another largest value than 1 to 65,535.
    """
    size = _SIZE.match(data)
    if size is None:
        raise IndexError("no size")
    number, width, height = (int(value) for value in size.groups())
    largest, end = 1, size.end()
    if number not in BITMAPS:
        found = _LARGEST_VALUE.match(data, end)
        if found is None:
            raise IndexError("no largest value")
        largest, end = int(found[1]), found.end()
    if not 0 < largest < 2**16:
        raise IndexError(f"a largest value of {largest}")
    # A single character ends the header; a raw picture may begin with one that looks like a space.
    return NetpbmHeader(number, width, height, largest, end + 1)


def decode_netpbm(data: bytes, header: NetpbmHeader) -> Image:
    """Decode the first picture of a file to uint8 RGB [H, W, 3], its largest value to 255.

    Raises: ValueError if values are missing, or larger than the largest one.
    """
    height, width, channels = header.height, header.width, header.channels
    values = read_plain(data, header) if header.number in PLAIN else read_raw(data, header)
    if values.size < height * width * channels:
        raise ValueError("the pixels break off")
    if int(values.max()) > header.largest or int(values.min()) < 0:
        raise ValueError(f"a value is not from 0 to {header.largest}")
    if header.largest != 255:
        steps = np.rint(np.arange(header.largest + 1) * (255 / header.largest)).astype(np.uint8)
        # In a PBM, 1 is black.
        values = (steps[::-1] if header.number in BITMAPS else steps)[values]
    pixels = values.astype(np.uint8, copy=False).reshape(height, width, channels)
    return np.ascontiguousarray(np.broadcast_to(pixels, (height, width, 3)))


def read_raw(data: bytes, header: NetpbmHeader) -> NDArray[np.generic]:
    """Read the values of P4 to P6, flat: bits of rows that fill bytes, bytes, or two bytes each, the higher first."""
    if header.number in BITMAPS:
        row_bytes = -(-header.width // 8)
        packed = np.frombuffer(data, np.uint8, offset=min(header.start, len(data)))[: row_bytes * header.height]
        if packed.size < row_bytes * header.height:
            raise ValueError("the pixels break off")
        return np.unpackbits(packed.reshape(header.height, row_bytes), axis=1)[:, : header.width].reshape(-1)
    width = 1 if header.largest < 256 else 2
    num_values = header.width * header.height * header.channels
    body = data[header.start : header.start + num_values * width]
    if len(body) < num_values * width:
        raise ValueError("the pixels break off")
    return np.frombuffer(body, np.uint8 if width == 1 else ">u2")


def read_plain(data: bytes, header: NetpbmHeader) -> NDArray[np.generic]:
    """Read the values of P1 to P3, flat: decimal numbers between spaces; the digits of a PBM need none between them."""
    body = _COMMENT.sub(b"", data[header.start - 1 :])
    num_values = header.width * header.height * header.channels
    # After the pixels, a file may go on with anything.
    body = body[: _PLAIN_BODY.match(body).end()]  # type: ignore[union-attr]
    if header.number in BITMAPS:
        return np.frombuffer(b"".join(body.split())[:num_values], np.uint8).astype(np.int16) - ord("0")
    body = body.strip()
    # Read without a count: with one, numpy makes up the values that are missing.
    return np.fromstring(body, np.int32, sep=" ")[:num_values] if body else np.empty(0, np.int32)
