"""The metadata of a picture that an answer made from it may keep: its ICC profile, and its EXIF data.

Pillow reads them, and writes them into PNG and WebP files. JPEG files come from a faster encoder, which writes none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from PIL import ExifTags
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from fusionray.errors import ImageRejected
from fusionray.faces.image_files.decode import ImageLimits, open_picture
from fusionray.faces.image_files.headers.image_header import KeptMetadata

# Profiles with tables of colours have half a megabyte.
MAX_PROFILE_BYTES = 2**20
# A JPEG holds EXIF data in one segment.
MAX_EXIF_BYTES = 65_000
# A segment states its length in 16 bits, which count themselves.
MAX_SEGMENT_BYTES = 65_533
XMP_NAME, ICC_NAME = b"http://ns.adobe.com/xap/1.0/\0", b"ICC_PROFILE\0"
# Bytes of an ICC profile that name the colours of the pixels that it describes (ICC.1:2022, 7.2.6).
PROFILE_COLOURS = slice(16, 20)


@dataclass(frozen=True)
class PictureMetadata:
    """Encoded metadata. Without a profile, the colours of a picture are sRGB."""

    icc_profile: bytes | None = None
    exif: bytes | None = None


def read_metadata(data: bytes, keep: KeptMetadata, limits: ImageLimits | None = None) -> PictureMetadata:
    """Read what is kept of an encoded picture: nothing, its ICC profile ("colours"), or its EXIF data as well ("all").

    What cannot be read is left out, and so is a profile of other pixels than RGB, which decoded pictures have. The
    orientation is left out, because pictures are decoded upright, and so is the thumbnail, which shows the picture as
    it was.
    """
    if keep == "none":
        return PictureMetadata()
    with suppress(ImageRejected), open_picture(data, limits or ImageLimits()) as picture:
        if picture is None:
            return PictureMetadata()
        return PictureMetadata(read_profile(picture), read_exif(picture) if keep == "all" else None)
    return PictureMetadata()


def read_profile(picture: ImageFile) -> bytes | None:
    """Return the ICC profile of an opened picture, if it describes RGB pixels."""
    profile = picture.info.get("icc_profile")
    if isinstance(profile, bytes) and len(profile) <= MAX_PROFILE_BYTES and profile[PROFILE_COLOURS] == b"RGB ":
        return profile
    return None


def read_exif(picture: ImageFile) -> bytes | None:
    """Return the EXIF data of an opened picture, written anew, if there are any.

    A TIFF file has none of its own: its directory mixes them with the description of its pixels.
    """
    if isinstance(picture, TiffImageFile):
        return None
    exif = picture.getexif()
    exif.pop(ExifTags.Base.Orientation, None)
    if not exif:
        return None
    encoded = exif.tobytes()
    return encoded if len(encoded) <= MAX_EXIF_BYTES else None


def add_jpeg_metadata(data: bytes, xmp: bytes, metadata: PictureMetadata) -> bytes:
    """Write an XMP packet, EXIF data and an ICC profile into an encoded JPEG without any, after its JFIF segment.

    Raises: ValueError if the packet or the EXIF data do not fit a segment.

    Source: JFIF 1.02, "APP0"; XMP specification, part 3, "JPEG"; ICC.1:2022, B.4.
    """
    (app0_length,) = struct.unpack_from(">H", data, 4)
    start = 4 + app0_length
    segments = [*([write_segment(0xE1, metadata.exif)] if metadata.exif else []), write_segment(0xE1, XMP_NAME + xmp)]
    return b"".join([data[:start], *segments, *write_profile(metadata.icc_profile or b""), data[start:]])


def write_profile(profile: bytes) -> Iterator[bytes]:
    """Write an ICC profile as segments, each with its number, from 1, and their count."""
    size = MAX_SEGMENT_BYTES - len(ICC_NAME) - 2
    parts = [profile[start : start + size] for start in range(0, len(profile), size)]
    for number, part in enumerate(parts, 1):
        yield write_segment(0xE2, ICC_NAME + bytes((number, len(parts))) + part)


def write_segment(marker: int, content: bytes) -> bytes:
    """Write a segment of a JPEG file.

    Raises: ValueError if the content is too long.
    """
    if len(content) > MAX_SEGMENT_BYTES:
        raise ValueError(f"a JPEG segment holds {MAX_SEGMENT_BYTES} bytes, not {len(content)}")
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content
