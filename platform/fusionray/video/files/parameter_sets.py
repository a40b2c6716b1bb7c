"""The parameter sets of H.264 and H.265: what a decoder must know before the first picture, stored beside the packets.

Packets that were encoded with other settings follow each other in one stream if each change brings its sets along, at
the head of the first packet. Source: ISO/IEC 14496-15, avcC and hvcC.
"""

from __future__ import annotations

import struct

# Codecs whose packets can carry their sets, with the tag of MP4 that says so.
TAGS = {"h264": "avc3", "hevc": "hev1"}
_LENGTH_BYTES = 4


def read_parameter_sets(codec: str, headers: bytes | None) -> bytes | None:
    """Return the sets of a stream as they stand in packets, each after its length of four bytes.

    None if there are none, or if the packets have lengths of another size.
    """
    if not headers or headers[0] != 1:
        return None
    try:
        units = _read_avc(headers) if codec == "h264" else _read_hevc(headers) if codec == "hevc" else []
    except (IndexError, struct.error):
        return None
    return b"".join(struct.pack(">I", len(unit)) + unit for unit in units) or None


def _read_avc(headers: bytes) -> list[bytes]:
    if (headers[4] & 3) + 1 != _LENGTH_BYTES:
        return []
    units, place = [], 5
    # Sequence sets are counted in five bits, picture sets in eight.
    for mask in (0x1F, 0xFF):
        count = headers[place] & mask
        place += 1
        for _ in range(count):
            unit, place = _read_unit(headers, place)
            units.append(unit)
    return units


def _read_hevc(headers: bytes) -> list[bytes]:
    if (headers[21] & 3) + 1 != _LENGTH_BYTES:
        return []
    units, place = [], 23
    for _ in range(headers[22]):
        (count,) = struct.unpack_from(">H", headers, place + 1)
        place += 3
        for _ in range(count):
            unit, place = _read_unit(headers, place)
            units.append(unit)
    return units


def _read_unit(headers: bytes, place: int) -> tuple[bytes, int]:
    """Read a unit behind its length of two bytes; return it, and where the next one begins."""
    (length,) = struct.unpack_from(">H", headers, place)
    unit = headers[place + 2 : place + 2 + length]
    if len(unit) != length:
        raise IndexError("the headers end within a parameter set")
    return unit, place + 2 + length
