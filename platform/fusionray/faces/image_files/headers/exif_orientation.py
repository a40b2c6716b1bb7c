"""EXIF's orientation of a picture, whatever container its block comes from."""

from __future__ import annotations

import struct

from fusionray.faces.image_files.headers.tiff_header import BYTE_ORDERS, SHORT, list_entries
from fusionray.faces.image_files.headers.tiff_header import ORIENTATION as ORIENTATION_TAG


def read_orientation(exif: bytes) -> int:
    """Read the EXIF orientation; 1 (upright) if there is none, or if the block is malformed.

    Reads only this tag of the first directory, because others may claim gigabytes.

    Source: TIFF 6.0, section 2.
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    order = BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return 1
    try:
        for tag, kind, count, place in list_entries(tiff, order):
            if tag == ORIENTATION_TAG:
                (value,) = struct.unpack_from(order + "H", tiff, place)
                return int(value) if (kind, count) == (SHORT, 1) and 1 <= value <= 8 else 1
    except struct.error:
        return 1
    return 1
