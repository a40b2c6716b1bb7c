"""Tell AVIF and HEIC files by their brands, check the sizes that their coded pictures state, and hide what is not read.

Source: ISO/IEC 23008-12, sections 6 and 9.
"""

from __future__ import annotations

import struct
from typing import Literal

from fusionray.errors import ImageRejected
from fusionray.faces.image_files.headers.coded_size import SizeReader, read_av1_sizes, read_hevc_sizes
from fusionray.faces.image_files.headers.heif_file import HeifFile, HeifItem
from fusionray.faces.image_files.headers.tiff_header import BYTE_ORDERS, list_entries

HeifKind = Literal["avif", "heic"]
AVIF_BRANDS = frozenset({b"avif", b"avis"})
HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
# Coded sizes are multiples of up to 64 pixels; properties state the size without that edge.
CODED_STEP = 64
# The smallest tile that a decoder may process for a picture that is smaller still.
LARGEST_SPARE_TILE = 1024 * 1024
# The type and the sizes of coded items, by kind of file.
CODECS: dict[HeifKind, tuple[bytes, SizeReader, bytes]] = {
    "avif": (b"av01", read_av1_sizes, b"av1C"),
    "heic": (b"hvc1", read_hevc_sizes, b"hvcC"),
}
# Boxes at the top of a file that hold a still picture; those of an animation are hidden from the decoder.
STILL_BOXES = frozenset({b"ftyp", b"meta", b"mdat", b"free"})
# A file that names one of these has to have an animation.
ANIMATION_BRANDS = frozenset({b"avis", b"msf1", b"hevc", b"hevx"})
METADATA_ITEMS = frozenset({b"Exif", b"mime", b"uri "})


def detect_heif(data: bytes) -> HeifKind | None:
    """Return the kind that the first box of a file names by its brands; None if it is another file."""
    if data[4:8] != b"ftyp":
        return None
    (size,) = struct.unpack_from(">I", data)
    brands = {data[8:12], *(data[start : start + 4] for start in range(16, min(size, 512), 4))}
    if brands & AVIF_BRANDS:
        return "avif"
    return "heic" if brands & HEIC_BRANDS else None


def check_coded_sizes(file: HeifFile, kind: HeifKind) -> None:
    """Check that no coded picture is larger than its properties state, and none much larger than the primary one.

    A decoder allocates what the coded data state. Every coded item is checked, also thumbnails and alpha planes.

    Raises: IndexError; ImageRejected ("unknown_format") if the picture is coded in another way.
    """
    primary = file.item(file.primary)
    width, height = file.read_size(primary)
    codec, read_sizes, settings_name = CODECS[kind]
    tiles = [file.item(number) for number in file.tiles.get(file.primary or 0, [])]
    kinds = {tile.kind for tile in tiles} if primary.kind == b"grid" else {primary.kind}
    if kinds != {codec}:
        shown = b", ".join(sorted(kinds)) or primary.kind
        raise ImageRejected("unknown_format", f"pictures coded as {shown!r} in {kind.upper()} files are not read")
    most = max(width * height, LARGEST_SPARE_TILE)
    for item in file.items.values():
        if item.kind == codec:
            check_item(file, item, most, read_sizes, settings_name)
    for derived, numbers in file.tiles.items():
        sizes = [file.read_size(file.items[number]) for number in numbers if number in file.items]
        if derived in file.items and sum(w * h for w, h in sizes) > 4 * most:
            raise IndexError("tiles that are larger than the picture")


def check_item(file: HeifFile, item: HeifItem, most: int, read_sizes: SizeReader, settings_name: bytes) -> None:
    stated = file.read_size(item)
    settings = item.find(settings_name)
    head = file.data[settings.start : settings.end] if settings is not None else None
    limits = [-(-side // CODED_STEP) * CODED_STEP for side in stated]
    if stated[0] * stated[1] > most:
        raise IndexError(f"a part of {stated[0]} x {stated[1]} pixels")
    for coded in read_sizes(item.read(file.data), head):
        if coded[0] > limits[0] or coded[1] > limits[1]:
            raise IndexError(f"two sizes, {stated[0]} x {stated[1]} and {coded[0]} x {coded[1]}")


def hide_boxes(data: bytes, *, keep_metadata: bool = False) -> bytes:
    """Rename what a decoder need not see: animations, and metadata unless they are kept. No byte moves.

    Decoders parse EXIF data as they open a file, so those that claim more than they have are hidden in any case. The
    orientation in them has no effect in HEIF (ISO/IEC 23008-12, A.2.1), though decoders may add it.
    """
    file = HeifFile(data)
    changed = bytearray(data)
    still = b"avif" if detect_heif(data) == "avif" else b"heic"
    changed[8:12] = still
    for start in range(16, file.top[0].end - 3, 4):
        if data[start : start + 4] in ANIMATION_BRANDS:
            changed[start : start + 4] = still
    for box in file.top:
        if box.name not in STILL_BOXES:
            changed[box.name_at : box.name_at + 4] = b"free"
    for item in file.items.values():
        if item.kind in METADATA_ITEMS and not (keep_metadata and is_modest(item, data)):
            changed[item.kind_at : item.kind_at + 4] = b"skip"
    return bytes(changed)


def is_modest(item: HeifItem, data: bytes) -> bool:
    """Tell whether the metadata of an item are no EXIF data, or such as claim no more than they have."""
    if item.kind != b"Exif":
        return True
    block = item.read(data)
    tiff = block[4 + int.from_bytes(block[:4]) :]
    order = BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return False
    try:
        return sum(entry.num_bytes for entry in list_entries(tiff, order)) <= len(tiff)
    except struct.error:
        return False
