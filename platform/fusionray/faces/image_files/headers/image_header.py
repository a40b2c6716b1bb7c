"""Read the kind, size and orientation of an encoded picture without decoding it.

A picture of a few kilobytes can decode to gigabytes, so untrusted files are checked here first.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NamedTuple

from fusionray.errors import ImageRejected
from fusionray.faces.image_files.headers.exif_orientation import read_orientation
from fusionray.faces.image_files.headers.heif_file import HeifFile
from fusionray.faces.image_files.headers.heif_header import check_coded_sizes, detect_heif
from fusionray.faces.image_files.headers.jpeg_header import FRAMES, list_segments, read_jpeg
from fusionray.faces.image_files.headers.tiff_header import BYTE_ORDERS, read_tiff
from fusionray.faces.image_files.netpbm import read_netpbm

# What pictures are decoded from, and what they are encoded as.
ImageKind = Literal["jpeg", "png", "webp", "bmp", "avif", "heic", "netpbm", "tiff"]
PictureFormat = Literal["png", "jpeg", "webp"]
# What is kept of the metadata of the picture from which another one is made: nothing, its ICC profile, or EXIF as well.
KeptMetadata = Literal["none", "colours", "all"]
KINDS_READ = "JPEG, PNG, WebP, AVIF, HEIC, BMP, TIFF or Netpbm"
# Kinds whose answer has another format: photographs are compressed, what kept every bit still does.
_ANSWERS: dict[ImageKind, PictureFormat] = {
    "avif": "jpeg", "heic": "jpeg", "bmp": "png", "netpbm": "png", "tiff": "png"
}  # fmt: skip
# Starts of files in formats that are known, and not read.
_FORMATS_NOT_READ = (
    (re.compile(rb"GIF8[79]a"), "GIF"),
    (re.compile(rb"\0\0\0\x0cjP  \r\n|\xff\x4f\xff\x51"), "JPEG 2000"),
    (re.compile(rb"\0\0\0\x0cJXL \r\n|\xff\x0a"), "JPEG XL"),
    (re.compile(rb"8BP[SB]\0[\1\2]"), "PSD"),
    (re.compile(rb"....ftypcrx |II[*]\0....CR|FUJIFILMCCD-RAW|II(RO|RS|U\0)|MMOR", re.DOTALL), "camera raw"),
    (re.compile(rb"II\+\0|MM\0\+"), "BigTIFF"),
    (re.compile(rb"P[7Ff]\s"), "PAM or PFM"),
    (re.compile(rb"\x76\x2f\x31\x01"), "OpenEXR"),
    (re.compile(rb"#\?R(ADIANC|GB)E"), "Radiance HDR"),
    (re.compile(rb"\0\0[\1\2]\0[^\0]\0"), "ICO"),
    (re.compile(rb"qoif"), "QOI"),
    (re.compile(rb"DDS "), "DDS"),
    (re.compile(rb"%PDF-"), "PDF"),
    (re.compile(rb"\s*(<\?xml[^>]*>\s*)?<svg"), "SVG"),
)
_NETPBM_START = re.compile(rb"P[1-6][\s#]")
# Each chunk costs a step of Python. A PNG has one for about each 8 KiB.
MAX_CHUNKS = 65_536


class ImageHeader(NamedTuple):
    """The header of a picture. `width` and `height` are as stored; `orientation` is EXIF's 1..8."""

    kind: ImageKind
    width: int
    height: int
    orientation: int


def read_header(data: bytes) -> ImageHeader:
    """Read the header of a picture, whose kind is recognised by content.

    Raises:
        ImageRejected: "unknown_format" for a known format that is not read, "not_an_image" for other content, "damaged"
            for an incomplete or contradictory header.
    """
    kind = detect_kind(data)
    try:
        width, height, orientation = _READERS[kind](data)
    except (struct.error, IndexError) as error:
        raise ImageRejected("damaged", f"the {kind} header breaks off: {error}") from error
    if width <= 0 or height <= 0:
        raise ImageRejected("damaged", f"the {kind} header states a size of {width} x {height}")
    return ImageHeader(kind, width, height, orientation)


def answer_format(data: bytes) -> PictureFormat:
    """Return the format in which a picture made from an encoded one is encoded.

    It is its own, JPEG for AVIF and HEIC, and PNG for BMP, TIFF and Netpbm.

    Raises:
        ImageRejected: "unknown_format" or "not_an_image".
    """
    kind = detect_kind(data)
    return _ANSWERS.get(kind, kind)  # type: ignore[arg-type]


def has_half_chroma(data: bytes) -> bool:
    """Tell whether an encoded picture is a JPEG that stores colours at half of its resolution in both directions."""
    with suppress(ImageRejected, struct.error, IndexError):
        if detect_kind(data) != "jpeg":
            return False
        for marker, start, _ in list_segments(data):
            if marker in FRAMES:
                # Number of components, then for each its name, its sampling factors, and its table.
                num_components, factors = data[start + 5], data[start + 7 : start + 15 : 3]
                return num_components == 3 and factors == b"\x22\x11\x11"
    return False


def detect_kind(data: bytes) -> ImageKind:  # noqa: PLR0911 - one for each kind
    """Return the kind of a picture by its first bytes.

    Raises:
        ImageRejected: "unknown_format" for a known format that is not read, "not_an_image" for other content.
    """
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    # Two letters are not enough; the reserved words of the file header must be zero as well.
    if data[:2] == b"BM" and data[6:10] == b"\0\0\0\0":
        return "bmp"
    if (heif := detect_heif(data)) is not None:
        return heif
    found = next((name for start, name in _FORMATS_NOT_READ if start.match(data[:1000])), None)
    if found is not None:
        raise ImageRejected("unknown_format", f"{found} is not read; convert it to {KINDS_READ}")
    if data[:4] in BYTE_ORDERS:
        return "tiff"
    if _NETPBM_START.match(data):
        return "netpbm"
    state = "the file is empty" if not data else f"it begins with {data[:8]!r}"
    raise ImageRejected("not_an_image", f"not a {KINDS_READ} picture: {state}")


def _read_png(data: bytes) -> tuple[int, int, int]:
    width, height = struct.unpack_from(">II", data, 16)
    position, exif = 8, b""
    for _ in range(MAX_CHUNKS):
        if position + 8 > len(data):
            return width, height, read_orientation(exif)
        length, name = struct.unpack_from(">I4s", data, position)
        if name == b"eXIf":
            exif = b"Exif\0\0" + data[position + 8 : position + 8 + length]
        position += 12 + length
    raise IndexError(f"more than {MAX_CHUNKS} chunks")


def _read_webp(data: bytes) -> tuple[int, int, int]:
    form = data[12:16]
    if form == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        return width, height, 1
    if form == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 1
    if form != b"VP8X":
        raise IndexError(f"unknown first chunk {form!r}")
    width, height = (int.from_bytes(data[start : start + 3], "little") + 1 for start in (24, 27))
    position, exif = 12, b""
    for _ in range(MAX_CHUNKS):
        if position + 8 > len(data):
            return width, height, read_orientation(exif)
        name, length = struct.unpack_from("<4sI", data, position)
        if name == b"EXIF":
            exif = data[position + 8 : position + 8 + length]
        position += 8 + length + length % 2
    raise IndexError(f"more than {MAX_CHUNKS} chunks")


def _read_bmp(data: bytes) -> tuple[int, int, int]:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return width, abs(height), 1  # a negative height means that the top row comes first


def _read_avif(data: bytes) -> tuple[int, int, int]:
    # Pillow decodes the pixels as they are stored.
    file = HeifFile(data)
    check_coded_sizes(file, "avif")
    primary = file.item(file.primary)
    return *file.read_size(primary), file.read_orientation(primary)


def _read_heic(data: bytes) -> tuple[int, int, int]:
    # libheif turns, mirrors and cuts the pixels as it decodes them.
    file = HeifFile(data)
    check_coded_sizes(file, "heic")
    return *file.read_turned_size(file.item(file.primary)), 1


def _read_netpbm(data: bytes) -> tuple[int, int, int]:
    header = read_netpbm(data)
    return header.width, header.height, 1


_READERS: dict[ImageKind, Callable[[bytes], tuple[int, int, int]]] = {
    "jpeg": read_jpeg,
    "png": _read_png,
    "webp": _read_webp,
    "bmp": _read_bmp,
    "avif": _read_avif,
    "heic": _read_heic,
    "netpbm": _read_netpbm,
    "tiff": read_tiff,
}
