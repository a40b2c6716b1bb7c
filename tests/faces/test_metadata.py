"""Colours stay as they were; where and when a picture was taken, and its thumbnail, leave only if somebody asks."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageCms

from fusionray.faces.image_files.headers.image_header import has_half_chroma
from fusionray.faces.image_files.metadata import MAX_PROFILE_BYTES, PictureMetadata, read_metadata
from fusionray.safety.output import encode_picture

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
PIXELS = np.full((40, 60, 3), 120, np.uint8)
THUMBNAIL = b"\xff\xd8 the picture as it was \xff\xd9"
FORMATS = pytest.mark.parametrize("picture_format", ["jpeg", "png", "webp"])


def write_exif() -> bytes:
    """EXIF data of a camera: maker, orientation, a place, and a thumbnail in the second directory."""

    def directory(entries: list[tuple[int, int, int, bytes]], following: int) -> bytes:
        rows = [struct.pack("<HHI", tag, kind, count) + value.ljust(4, b"\0") for tag, kind, count, value in entries]
        return struct.pack("<H", len(rows)) + b"".join(rows) + struct.pack("<I", following)

    start, gps, second, thumbnail = 8, 60, 90, 140
    first = directory(
        [(0x010F, 2, 4, b"ACME"), (0x0112, 3, 1, struct.pack("<H", 6)), (0x8825, 4, 1, struct.pack("<I", gps))], second
    )
    place = directory([(1, 2, 2, b"N")], 0)
    reference = [(0x0201, 4, 1, struct.pack("<I", thumbnail)), (0x0202, 4, 1, struct.pack("<I", len(THUMBNAIL)))]
    body = bytearray(b"II*\0" + struct.pack("<I", start)).ljust(thumbnail, b"\0")
    for offset, part in ((start, first), (gps, place), (second, directory(reference, 0))):
        body[offset : offset + len(part)] = part
    return b"Exif\0\0" + bytes(body) + THUMBNAIL


def write_picture(picture_format: str, **metadata: bytes) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, picture_format, **metadata)
    return buffer.getvalue()


@FORMATS
def test_each_format_keeps_what_is_asked(picture_format: str) -> None:
    data = write_picture(picture_format, icc_profile=PROFILE, exif=write_exif())
    assert read_metadata(data, "none") == PictureMetadata()
    assert read_metadata(data, "colours") == PictureMetadata(PROFILE)
    kept = read_metadata(data, "all")
    assert kept.icc_profile == PROFILE
    for answer in ("jpeg", "png", "webp"):
        made = encode_picture(PIXELS, b"<x:xmpmeta/>", answer, 90, kept)  # type: ignore[arg-type]
        assert THUMBNAIL not in made
        with Image.open(io.BytesIO(made)) as picture:
            assert picture.info["icc_profile"] == PROFILE
            exif = picture.getexif()
            assert exif[ExifTags.Base.Make] == "ACME"
            assert exif.get_ifd(ExifTags.IFD.GPSInfo)[1] == "N"
            assert ExifTags.Base.Orientation not in exif
        plain = encode_picture(PIXELS, b"<x:xmpmeta/>", answer, 90)  # type: ignore[arg-type]
        with Image.open(io.BytesIO(plain)) as picture:
            assert "icc_profile" not in picture.info
            assert not picture.getexif()


def test_a_profile_of_several_segments_comes_through_a_jpeg() -> None:
    profile = PROFILE.ljust(200_001, b"\1")
    made = encode_picture(PIXELS, b"<x:xmpmeta/>", "jpeg", 92, PictureMetadata(profile))
    with Image.open(io.BytesIO(made)) as picture:
        assert picture.info["icc_profile"] == profile
        assert picture.info["xmp"] == b"<x:xmpmeta/>"
        picture.load()


def test_a_packet_longer_than_a_segment_is_refused() -> None:
    with pytest.raises(ValueError, match="segment"):
        encode_picture(PIXELS, b"x" * 70_000, "jpeg", 92)


@pytest.mark.parametrize(
    ("picture_format", "options", "is_half"),
    [
        ("JPEG", {"subsampling": "4:2:0"}, True),
        ("JPEG", {"subsampling": "4:2:0", "progressive": True}, True),
        ("JPEG", {"subsampling": "4:2:2"}, False),
        ("JPEG", {"subsampling": "4:4:4"}, False),
        ("PNG", {}, False),
    ],
)
def test_a_jpeg_tells_how_it_stores_colours(picture_format: str, options: dict[str, object], is_half: bool) -> None:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, picture_format, **options)
    assert has_half_chroma(buffer.getvalue()) is is_half
    made = encode_picture(PIXELS, b"<x:xmpmeta/>", "jpeg", 92, half_chroma=is_half)
    assert has_half_chroma(made) is is_half


def test_what_is_no_whole_jpeg_stores_no_half_colours() -> None:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).convert("L").save(buffer, "JPEG")
    for data in (b"", b"\xff\xd8\xff", buffer.getvalue(), buffer.getvalue()[:30]):
        assert not has_half_chroma(data)


@pytest.mark.parametrize(
    "profile",
    [
        ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes(),
        b"no profile",
        PROFILE.ljust(MAX_PROFILE_BYTES + 1, b"\0"),
    ],
    ids=["of other pixels", "damaged", "too long"],
)
def test_a_profile_that_does_not_fit_is_left_out(profile: bytes) -> None:
    assert read_metadata(write_picture("jpeg", icc_profile=profile), "colours") == PictureMetadata()


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + bytes(4000)])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_exif_data_that_cannot_be_read_are_left_out(exif: bytes) -> None:
    assert read_metadata(write_picture("jpeg", exif=exif), "all").exif is None


def test_a_picture_that_cannot_be_opened_has_no_metadata() -> None:
    assert read_metadata(b"no picture", "all") == PictureMetadata()
    assert read_metadata(write_picture("png", icc_profile=PROFILE)[:60], "all") == PictureMetadata()


@pytest.mark.parametrize("picture_format", ["avif", "tiff"])
def test_other_formats_keep_their_profile(picture_format: str) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Make] = "ACME"
    data = write_picture(picture_format, icc_profile=PROFILE, exif=exif.tobytes())
    assert read_metadata(data, "colours") == PictureMetadata(PROFILE)
    kept = read_metadata(data, "all").exif
    # A TIFF mixes them with the description of its pixels.
    assert kept is None if picture_format == "tiff" else b"ACME" in (kept or b"")


def test_netpbm_pictures_have_no_metadata() -> None:
    assert read_metadata(write_picture("ppm"), "all") == PictureMetadata()
