"""Read the sizes that AV1 and HEVC data state themselves: a decoder allocates those, whatever the file says.

Source: AV1 Bitstream & Decoding Process Specification, 5.3 to 5.5; ITU-T H.265, 7.3.1 and 7.3.2; ISO/IEC 14496-15,
8.3.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

SizeReader = Callable[[bytes, bytes | None], Iterator[tuple[int, int]]]
# A still picture has about four units, or one for each slice.
MAX_UNITS = 4096
OBU_SEQUENCE_HEADER = 1
NAL_SEQUENCE_PARAMETERS = 33
# Bytes in which the size stands, with all that precedes it.
SEQUENCE_BYTES = 1024


class BitReader:
    """Read unsigned numbers of some bits, the highest bit first.

    Raises: IndexError at the end of the data.
    """

    def __init__(self, data: bytes) -> None:
        self.bits = int.from_bytes(data)
        self.num_left = 8 * len(data)

    def read(self, width: int) -> int:
        """Read a number of `width` bits."""
        self.num_left -= width
        if self.num_left < 0:
            raise IndexError("coded data that break off")
        return self.bits >> self.num_left & (1 << width) - 1

    def read_exponential(self) -> int:
        """Read an exponential Golomb code, as both standards define it."""
        width = 0
        while not self.read(1):
            width += 1
            if width > 32:
                raise IndexError("a number of more than 32 bits")
        return (1 << width) - 1 + self.read(width)


def read_av1_sizes(coded: bytes, settings: bytes | None) -> Iterator[tuple[int, int]]:
    """Yield width and height of each sequence header of AV1 data; no frame is larger. `settings` is the box `av1C`."""
    del settings
    place = 0
    for _ in range(MAX_UNITS):
        if place >= len(coded):
            return
        head = coded[place]
        place += 2 if head & 4 else 1
        length = len(coded) - place
        if head & 2:
            length, place = read_leb128(coded, place)
        if (head >> 3 & 15) == OBU_SEQUENCE_HEADER:
            yield read_sequence_header(BitReader(coded[place : place + min(length, SEQUENCE_BYTES)]))
        place += length
    raise IndexError(f"more than {MAX_UNITS} units of coded data")


def read_leb128(data: bytes, place: int) -> tuple[int, int]:
    """Read a number of up to eight bytes of seven bits, the lowest first; return it and where it ends."""
    value = 0
    for index in range(8):
        byte = data[place + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, place + index + 1
    raise IndexError("a length of more than eight bytes")


def read_sequence_header(bits: BitReader) -> tuple[int, int]:
    bits.read(4)  # profile, still picture
    if bits.read(1):  # the reduced header of still pictures
        bits.read(5)
    else:
        delay_width = read_timing(bits)
        has_display_delay = bits.read(1)
        for _ in range(bits.read(5) + 1):
            bits.read(12)
            if bits.read(5) > 7:
                bits.read(1)
            if delay_width and bits.read(1):
                bits.read(2 * delay_width + 1)
            if has_display_delay and bits.read(1):
                bits.read(4)
    widths = bits.read(4) + 1, bits.read(4) + 1
    return bits.read(widths[0]) + 1, bits.read(widths[1]) + 1


def read_timing(bits: BitReader) -> int:
    """Read the timing of a sequence; return how wide the delays of its decoder model are, 0 if it has none."""
    if not bits.read(1):
        return 0
    bits.read(64)
    if bits.read(1):
        bits.read_exponential()
    if not bits.read(1):
        return 0
    delay_width = bits.read(5) + 1
    bits.read(42)
    return delay_width


def read_hevc_sizes(coded: bytes, settings: bytes | None) -> Iterator[tuple[int, int]]:
    """Yield width and height of each sequence parameter set, in `settings` (the box `hvcC`) and in the coded data."""
    if settings is None:
        raise IndexError("HEVC data without settings")
    place = 23
    for _ in range(settings[22]):
        (num_units,) = struct.unpack_from(">H", settings, place + 1)
        place += 3
        for _ in range(num_units):
            (length,) = struct.unpack_from(">H", settings, place)
            yield from read_nal_unit(settings[place + 2 : place + 2 + length])
            place += 2 + length
    width, place = (settings[21] & 3) + 1, 0
    for _ in range(MAX_UNITS):
        if place + width > len(coded):
            return
        length = int.from_bytes(coded[place : place + width])
        place += width
        yield from read_nal_unit(coded[place : place + min(length, SEQUENCE_BYTES)])
        place += length
    raise IndexError(f"more than {MAX_UNITS} units of coded data")


def read_nal_unit(unit: bytes) -> Iterator[tuple[int, int]]:
    if len(unit) > 2 and unit[0] >> 1 & 63 == NAL_SEQUENCE_PARAMETERS:
        # A byte 3 after two zeros only keeps the data from looking like a start code.
        yield read_sequence_parameters(BitReader(unit[2:SEQUENCE_BYTES].replace(b"\0\0\3", b"\0\0")))


def read_sequence_parameters(bits: BitReader) -> tuple[int, int]:
    bits.read(4)
    num_sub_layers = bits.read(3)
    bits.read(1 + 96)
    if num_sub_layers:
        present = [(bits.read(1), bits.read(1)) for _ in range(8)][:num_sub_layers]
        for has_profile, has_level in present:
            bits.read(88 * has_profile + 8 * has_level)
    bits.read_exponential()
    if bits.read_exponential() == 3:
        bits.read(1)
    return bits.read_exponential(), bits.read_exponential()
