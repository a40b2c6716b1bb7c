"""The metadata of a picture that an answer made from it may keep: its ICC profile, and its EXIF data."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from PIL import ExifTags
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from fusionray.errors import ImageRejected
from fusionray.faces.decode import ImageLimits, open_picture
from fusionray.faces.image_header import KeptMetadata

# Profiles with tables of colours have half a megabyte.
MAX_PROFILE_BYTES = 2**20
# A JPEG holds EXIF data in one segment.
MAX_EXIF_BYTES = 65_000
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
