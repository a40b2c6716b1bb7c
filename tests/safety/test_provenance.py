from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fusionray.errors import ImageRejected
from fusionray.faces.image_files.decode import decode_image
from fusionray.faces.image_files.headers.image_header import PictureFormat
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import (
    DIGITAL_SOURCE_TYPE,
    Provenance,
    build_packet,
    parse_packet,
    read_provenance,
)

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
FORMATS: tuple[PictureFormat, ...] = ("png", "jpeg", "webp")


@pytest.mark.parametrize("picture_format", FORMATS)
def test_provenance_survives_encoding(picture_format: PictureFormat) -> None:
    written = Provenance(model='tiny <&"> größer', bundle="ab" * 32)
    data = encode_output(PICTURE, written, picture_format, signer=None)
    assert read_provenance(data) == written
    assert DIGITAL_SOURCE_TYPE.encode() in data
    assert decode_image(data).shape == PICTURE.shape


def test_png_keeps_every_pixel() -> None:
    data = encode_output(PICTURE, Provenance("tiny", "0"), "png", signer=None)
    assert np.array_equal(decode_image(data), PICTURE)


@pytest.mark.parametrize("picture_format", ["png", "jpeg", "webp"])
def test_a_plain_picture_has_no_provenance(picture_format: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(PICTURE).save(buffer, picture_format)
    assert read_provenance(buffer.getvalue()) is None


def test_other_bytes_than_a_picture_are_rejected() -> None:
    with pytest.raises(ImageRejected) as caught:
        read_provenance(b"hello")
    assert caught.value.reason == "not_an_image"


def test_packets_of_other_software_and_entity_bombs_are_ignored() -> None:
    assert parse_packet(b"<x:xmpmeta xmlns:x='adobe:ns:meta/'/>") is None
    assert parse_packet(b"<x:xmpmeta") is None
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaa">]>' + build_packet(Provenance("tiny", "0"))
    assert parse_packet(bomb) is None
    # The same in an encoding in which the forbidden words look otherwise.
    hidden = b'<?xml version="1.0" encoding="utf-16"?>'.decode() + bomb.decode().replace("\ufeff", "")
    assert parse_packet(hidden.encode("utf-16")) is None
    assert parse_packet(b"<a>" * 200_000 + b"</a>" * 200_000) is None


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="picture_format"):
        encode_output(PICTURE, Provenance("tiny", "0"), "tiff", signer=None)  # type: ignore[arg-type]
