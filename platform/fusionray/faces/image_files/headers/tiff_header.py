"""Read the first directory of a TIFF file, and write a file that has this directory alone, without metadata.

Source: TIFF 6.0, sections 2 and 8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from fusionray.errors import ImageRejected

BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
WIDTH, LENGTH, PHOTOMETRIC, ORIENTATION = 0x0100, 0x0101, 0x0106, 0x0112
TILE_WIDTH, TILE_LENGTH, SUB_DIRECTORIES, DNG_VERSION, NEW_SUBFILE_TYPE = 0x0142, 0x0143, 0x014A, 0xC612, 0x00FE
BYTE, SHORT, LONG = 1, 3, 4
# Bytes of a value of each type, 1 (BYTE) to 12 (DOUBLE).
TYPE_BYTES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)
# Scanners write 20 entries, cameras up to 60.
MAX_ENTRIES = 1024
# Colour filter array and linear raw: what a camera's sensor saw.
RAW_PHOTOMETRICS = frozenset({32_803, 34_892})
# The entries without which the pixels cannot be decoded: size, coding, colours, strips, tiles, alpha.
PIXEL_TAGS = frozenset({
    WIDTH, LENGTH, 0x0102, 0x0103, PHOTOMETRIC, 0x010A, 0x0111, 0x0115, 0x0116, 0x0117, 0x011C, 0x0124, 0x0125, 0x013D,
    0x0140, TILE_WIDTH, TILE_LENGTH, 0x0144, 0x0145, 0x0152, 0x0153, 0x015B, 0x0200, 0x0201, 0x0202, 0x0211, 0x0212,
    0x0213, 0x0214,
})  # fmt: skip

# Those among them that have one value: compression, photometric, fill order, samples, rows, planes, predictor.
SINGLE_TAGS = frozenset(
    {WIDTH, LENGTH, 0x0103, PHOTOMETRIC, 0x010A, 0x0115, 0x0116, 0x011C, 0x013D, TILE_WIDTH, TILE_LENGTH}
)
METADATA_TAGS = frozenset({0x02BC, 0x8773})  # XMP, ICC profile


class TiffEntry(NamedTuple):
    """An entry of a directory; `place` is where its value, or the offset of its values, lies in the file."""

    tag: int
    kind: int
    num_values: int
    place: int

    @property
    def num_bytes(self) -> int:
        """Return the length of the values; 0 for an unknown type, which readers skip."""
        return self.num_values * TYPE_BYTES[self.kind] if self.kind < len(TYPE_BYTES) else 0


def list_entries(data: bytes, order: str) -> Iterator[TiffEntry]:
    """Yield the entries of the first directory.

    Raises: struct.error if it breaks off.
    """
    (position,) = struct.unpack_from(order + "I", data, 4)
    (num_entries,) = struct.unpack_from(order + "H", data, position)
    for start in range(position + 2, position + 2 + 12 * num_entries, 12):
        yield TiffEntry._make((*struct.unpack_from(order + "HHI", data, start), start + 8))


def read_value(data: bytes, order: str, entry: TiffEntry) -> int:
    """Read the first value of an entry of whole numbers, of which there is one; 0 if it is another."""
    code = {BYTE: "B", SHORT: "H", LONG: "I"}.get(entry.kind)
    if code is None or entry.num_values != 1:
        return 0
    return int(struct.unpack_from(order + code, data, entry.place)[0])


def read_offset(data: bytes, order: str, entry: TiffEntry) -> int:
    """Read where the values of an entry lie that do not fit into it."""
    return int(struct.unpack_from(order + "I", data, entry.place)[0])


def read_tiff(data: bytes) -> tuple[int, int, int]:
    """Read width, height and orientation of the first picture of a TIFF file.

    Raises: IndexError or struct.error if its directory is damaged, or claims more data than the file has; ImageRejected
        ("unknown_format") for the raw picture of a camera.
    """
    order = BYTE_ORDERS[data[:4]]
    entries = list(list_entries(data, order))
    if len(entries) > MAX_ENTRIES:
        raise IndexError(f"{len(entries)} entries")
    # Readers load all values at once, and entries may share bytes of the file.
    if sum(entry.num_bytes for entry in entries) > len(data):
        raise IndexError("entries that claim more than the file has")
    for entry in entries:
        if entry.num_bytes > 4 and read_offset(data, order, entry) + entry.num_bytes > len(data):
            raise IndexError(f"values of the entry {entry.tag} outside of the file")
        if entry.tag in SINGLE_TAGS and entry.num_values != 1:
            raise IndexError(f"{entry.num_values} values of the entry {entry.tag}")
    values = {entry.tag: read_value(data, order, entry) for entry in entries}
    is_preview = values.get(NEW_SUBFILE_TYPE, 0) & 1 and SUB_DIRECTORIES in values
    if values.get(PHOTOMETRIC) in RAW_PHOTOMETRICS or DNG_VERSION in values or is_preview:
        raise ImageRejected("unknown_format", "the raw picture of a camera is not read; develop it to JPEG or TIFF")
    width, height = values.get(WIDTH, 0), values.get(LENGTH, 0)
    # A tile is decoded as a whole, also where it reaches beyond the picture.
    if values.get(TILE_WIDTH, 0) > width + 1024 or values.get(TILE_LENGTH, 0) > height + 1024:
        raise IndexError("a tile that is larger than the picture")
    orientation = values.get(ORIENTATION, 1)
    return width, height, orientation if 1 <= orientation <= 8 else 1


def strip_tiff(data: bytes, *, keep_metadata: bool = False) -> bytes:
    """Add a directory that has only what pixels need, and let the file begin with it; no other picture follows.

    XMP and ICC profile are kept if asked for, EXIF data never.
    """
    wanted = PIXEL_TAGS | METADATA_TAGS if keep_metadata else PIXEL_TAGS
    order = BYTE_ORDERS[data[:4]]
    kept = [entry for entry in list_entries(data, order) if entry.tag in wanted]
    data += b"\0" * (len(data) % 2)
    rows = [struct.pack(order + "HHI", *entry[:3]) + data[entry.place : entry.place + 4] for entry in kept]
    directory = struct.pack(order + "H", len(rows)) + b"".join(rows) + bytes(4)
    return data[:4] + struct.pack(order + "I", len(data)) + data[8:] + directory
