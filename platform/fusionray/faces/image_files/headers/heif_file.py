"""Read the boxes and items of an AVIF or HEIC file.

Both are HEIF: boxes (ISO/IEC 14496-12, 4.2), a `meta` box that lists items with properties, and coded data in `mdat`.

Source: ISO/IEC 23008-12, sections 6 and 9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# Encoders write about ten boxes, and an item for each tile of 512 px.
MAX_BOXES = 4096
MAX_REFERENCES = 16_384
# Rotation in quarter turns to the left, mirror (None, top with bottom, left with right) -> EXIF orientation.
ORIENTATIONS = {
    (0, None): 1, (1, None): 8, (2, None): 3, (3, None): 6,
    (0, 0): 4, (1, 0): 5, (2, 0): 2, (3, 0): 7,
    (0, 1): 2, (1, 1): 7, (2, 1): 4, (3, 1): 5,
}  # fmt: skip


class Box(NamedTuple):
    """A box: its type, and where its type and content lie in the file."""

    name: bytes
    name_at: int
    start: int
    end: int


@dataclass
class HeifItem:
    """An item: its type and where that lies in the file, its extents in the file, and its properties in order."""

    kind: bytes = b""
    kind_at: int = 0
    extents: list[tuple[int, int]] = field(default_factory=list)
    properties: list[Box] = field(default_factory=list)

    def find(self, name: bytes) -> Box | None:
        """Return the first property of a type."""
        return next((box for box in self.properties if box.name == name), None)

    def num_bytes(self) -> int:
        """Return the length of the item's data."""
        return sum(end - start for start, end in self.extents)

    def read(self, data: bytes) -> bytes:
        """Return the item's data."""
        return b"".join(data[start:end] for start, end in self.extents)


def list_boxes(data: bytes, start: int, end: int) -> Iterator[Box]:
    """Yield the boxes between two places of a file.

    Raises: IndexError if one is not within them, or there are more than `MAX_BOXES`.
    """
    for _ in range(MAX_BOXES):
        if start + 8 > end:
            return
        size, name = struct.unpack_from(">I4s", data, start)
        content = start + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, content)
            content += 8
        last = end if size == 0 else start + size
        if not content <= last <= end:
            raise IndexError(f"a box {name!r} of {size} bytes at byte {start}")
        yield Box(name, start + 4, content, last)
        start = last
    raise IndexError(f"more than {MAX_BOXES} boxes")


class HeifFile:
    """The items of an AVIF or HEIC file.

    Raises: IndexError or struct.error if the structure is damaged, or larger than any that encoders write.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.items: dict[int, HeifItem] = {}
        self.tiles: dict[int, list[int]] = {}
        self.primary: int | None = None
        self.top = list(list_boxes(data, 0, len(data)))
        meta = next((box for box in self.top if box.name == b"meta"), None)
        if meta is None:
            raise IndexError("no still picture")
        boxes = {box.name: box for box in list_boxes(data, meta.start + 4, meta.end)}
        readers = ((b"pitm", self.read_primary), (b"iinf", self.read_items), (b"iprp", self.read_properties))
        for name, read in readers:
            if name not in boxes:
                raise IndexError(f"no box {name!r}")
            read(boxes[name])
        if b"iloc" in boxes:
            self.read_places(boxes[b"iloc"], boxes.get(b"idat"))
        if b"iref" in boxes:
            self.read_references(boxes[b"iref"])
        if sum(item.num_bytes() for item in self.items.values()) > len(data):
            raise IndexError("items that overlap")

    def item(self, number: int | None) -> HeifItem:
        """Return an item.

        Raises: IndexError.
        """
        if number is None or number not in self.items:
            raise IndexError(f"no item {number}")
        return self.items[number]

    def read_primary(self, box: Box) -> None:
        version = self.data[box.start]
        (self.primary,) = struct.unpack_from(">H" if version == 0 else ">I", self.data, box.start + 4)

    def read_items(self, box: Box) -> None:
        start = box.start + (6 if self.data[box.start] == 0 else 8)
        for entry in list_boxes(self.data, start, box.end):
            version = self.data[entry.start]
            if entry.name != b"infe" or version < 2:
                raise IndexError(f"an item entry {entry.name!r} of version {version}")
            (number,) = struct.unpack_from(">H" if version == 2 else ">I", self.data, entry.start + 4)
            kind_at = entry.start + (8 if version == 2 else 10)
            self.items[number] = HeifItem(self.data[kind_at : kind_at + 4], kind_at)

    def read_properties(self, box: Box) -> None:
        boxes = list(list_boxes(self.data, box.start, box.end))
        properties = [one for holder in boxes if holder.name == b"ipco" for one in
                      list_boxes(self.data, holder.start, holder.end)]  # fmt: skip
        num_left = MAX_REFERENCES
        for holder in boxes:
            if holder.name != b"ipma":
                continue
            version, wide = self.data[holder.start], self.data[holder.start + 3] & 1
            (num_entries,) = struct.unpack_from(">I", self.data, holder.start + 4)
            place = holder.start + 8
            for _ in range(num_entries):
                (number,) = struct.unpack_from(">H" if version == 0 else ">I", self.data, place)
                place += 2 if version == 0 else 4
                count = self.data[place]
                place += 1
                num_left -= count + 1
                if num_left < 0:
                    raise IndexError(f"more than {MAX_REFERENCES} properties of items")
                for index in struct.unpack_from(f">{count}{'H' if wide else 'B'}", self.data, place):
                    # The highest bit says that a reader must know the property.
                    known = index & (0x7FFF if wide else 0x7F)
                    if known and number in self.items:
                        self.items[number].properties.append(properties[known - 1])
                place += count * (2 if wide else 1)

    def read_places(self, box: Box, idat: Box | None) -> None:
        """Read the extents of all items; those of unknown items are skipped."""
        version = self.data[box.start]
        sizes, more = self.data[box.start + 4], self.data[box.start + 5]
        widths = (more >> 4, more & 15 if version else 0, sizes >> 4, sizes & 15)
        base_width, index_width, offset_width, length_width = widths
        place = box.start + 6
        (num_items,) = struct.unpack_from(">H" if version < 2 else ">I", self.data, place)
        place += 2 if version < 2 else 4
        num_left = MAX_REFERENCES
        for _ in range(num_items):
            (number,) = struct.unpack_from(">H" if version < 2 else ">I", self.data, place)
            place += 2 if version < 2 else 4
            method = 0
            if version:
                method = struct.unpack_from(">H", self.data, place)[0] & 15
                place += 2
            base, place = self.read_number(place + 2, base_width)
            (num_extents,) = struct.unpack_from(">H", self.data, place)
            place += 2
            num_left -= num_extents + 1
            if num_left < 0:
                raise IndexError(f"more than {MAX_REFERENCES} extents")
            for _ in range(num_extents):
                _, place = self.read_number(place, index_width)
                offset, place = self.read_number(place, offset_width)
                length, place = self.read_number(place, length_width)
                self.add_extent(number, method, base + offset, length, idat)

    def add_extent(self, number: int, method: int, offset: int, length: int, idat: Box | None) -> None:
        if number not in self.items:
            return
        first, last = (idat.start, idat.end) if method == 1 and idat is not None else (0, len(self.data))
        start = first + offset
        end = last if length == 0 else start + length
        if method > 1 or (method == 1 and idat is None) or not start <= end <= last:
            raise IndexError(f"data of item {number} outside of the file")
        self.items[number].extents.append((start, end))

    def read_number(self, place: int, width: int) -> tuple[int, int]:
        if place + width > len(self.data):
            raise IndexError(f"no number at byte {place}")
        return int.from_bytes(self.data[place : place + width]), place + width

    def read_references(self, box: Box) -> None:
        """Read of which tiles derived pictures consist."""
        code = "H" if self.data[box.start] == 0 else "I"
        num_left = MAX_REFERENCES
        for entry in list_boxes(self.data, box.start + 4, box.end):
            number, count = struct.unpack_from(f">{code}H", self.data, entry.start)
            num_left -= count
            if num_left < 0:
                raise IndexError(f"more than {MAX_REFERENCES} references")
            if entry.name == b"dimg":
                place = entry.start + struct.calcsize(f">{code}H")
                self.tiles.setdefault(number, []).extend(struct.unpack_from(f">{count}{code}", self.data, place))

    def read_size(self, item: HeifItem) -> tuple[int, int]:
        """Read width and height that an item's properties state, before it is turned.

        Raises: IndexError.
        """
        box = item.find(b"ispe")
        if box is None:
            raise IndexError("a picture without a size")
        width, height = struct.unpack_from(">II", self.data, box.start + 4)
        return width, height

    def read_orientation(self, item: HeifItem) -> int:
        """Read the EXIF orientation to which an item's rotation and mirror amount."""
        turn, mirror = item.find(b"irot"), item.find(b"imir")
        quarters = self.data[turn.start] & 3 if turn is not None else 0
        axis = self.data[mirror.start] & 1 if mirror is not None else None
        return ORIENTATIONS[quarters, axis]

    def read_turned_size(self, item: HeifItem) -> tuple[int, int]:
        """Read width and height of an item after its properties, in their order, have cut and turned it.

        Raises: IndexError; struct.error.
        """
        width, height = self.read_size(item)
        for box in item.properties:
            if box.name == b"clap":
                parts = struct.unpack_from(">IIII", self.data, box.start)
                if 0 in parts[1::2]:
                    raise IndexError("a division by 0")
                width, height = (
                    min(a // b, side) for a, b, side in zip(parts[::2], parts[1::2], (width, height), strict=True)
                )
            elif box.name == b"irot" and self.data[box.start] & 1:
                width, height = height, width
        return width, height
