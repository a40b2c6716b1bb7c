from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import cv2
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from fusionray import __version__
from fusionray.errors import SigningFailed
from fusionray.faces.image_files.decode import decode_image
from fusionray.faces.image_files.headers.image_header import PictureFormat
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import DIGITAL_SOURCE_TYPE, Provenance, read_provenance
from fusionray.safety.signing import Signer
from fusionray.safety.signing_keys import load_key
from fusionray.safety.verify import verify
from tests.safety.certificates import Authority, write_files
from tests.safety.containers import flip
from tests.support.pictures import draw_empty, draw_person

FORMATS: tuple[PictureFormat, ...] = ("png", "jpeg", "webp")
PROVENANCE = Provenance(model='tiny <&"> größer', bundle="ab" * 32)


@pytest.mark.parametrize("picture_format", FORMATS)
def test_an_output_states_who_made_it_and_with_what(
    picture_format: PictureFormat, signer: Signer, authority: Authority
) -> None:
    data = encode_output(draw_empty(), PROVENANCE, picture_format, signer=signer)
    verdict = verify(data, authority.pem)
    assert verdict.holds
    assert verdict.trusted
    assert not verdict.test_key
    assert (verdict.signer, verdict.organisation) == ("Example Studio", "Example Studio Ltd")
    assert (verdict.generator, verdict.generator_version) == ("fusionray", __version__)
    assert verdict.digital_source_type == DIGITAL_SOURCE_TYPE
    assert (verdict.model, verdict.bundle) == (PROVENANCE.model, PROVENANCE.bundle)
    assert verdict.faults == ()
    assert verdict.xmp == PROVENANCE
    assert verdict.xmp_agrees


@pytest.mark.parametrize("picture_format", FORMATS)
def test_signing_changes_no_pixel_and_adds_no_thumbnail(picture_format: PictureFormat, signer: Signer) -> None:
    picture = draw_person(3)
    plain = encode_output(picture, PROVENANCE, picture_format, signer=None)
    signed = encode_output(picture, PROVENANCE, picture_format, signer=signer)
    assert np.array_equal(decode_image(plain), decode_image(signed))
    assert read_provenance(signed) == read_provenance(plain) == PROVENANCE
    assert len(signed) - len(plain) < 5000


def test_a_signer_is_used_from_many_threads_at_once(signer: Signer, authority: Authority) -> None:
    def make(number: int) -> bool:
        name = Provenance(f"model-{number}", f"{number:064x}")
        data = encode_output(draw_empty(64, 64), name, FORMATS[number % 3], signer=signer)
        verdict = verify(data, authority.pem)
        return verdict.holds and (verdict.model, verdict.bundle) == (name.model, name.bundle)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(make, range(240)))


def test_a_certificate_that_expires_while_serving_signs_no_more(authority: Authority, tmp_path: Path) -> None:
    private_key = generate_private_key(SECP256R1())
    certificate = authority.issue(private_key, ends=timedelta(seconds=2))
    with pytest.warns(RuntimeWarning, match="expires in 0 days"):
        key = load_key(write_files(tmp_path, private_key, certificate))
    signer = Signer(key)
    data = encode_output(draw_empty(), PROVENANCE, signer=signer)
    assert verify(data, authority.pem).holds
    # C2PA counts in whole seconds.
    time.sleep(3.2)
    with pytest.raises(SigningFailed, match="expired"):
        encode_output(draw_empty(), PROVENANCE, signer=signer)
    late = verify(data, authority.pem)
    assert not late.holds
    assert not late.altered
    assert "the certificate has expired" in late.faults


def test_a_film_is_signed_too(signer: Signer, authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "film.mp4"
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter.fourcc(*"mp4v"), 25, (64, 64))
    for shade in range(10):
        writer.write(np.full((64, 64, 3), shade * 20, np.uint8))
    writer.release()
    data = signer.sign(file.read_bytes(), "video/mp4", PROVENANCE)
    assert verify(data, authority.pem).holds
    changed = verify(flip(data, data.index(b"mdat") + 20), authority.pem)
    assert changed.altered
    assert not changed.holds


def test_an_output_that_cannot_be_signed_is_withheld(signer: Signer) -> None:
    with pytest.raises(SigningFailed, match="image/png"):
        signer.sign(b"no picture", "image/png", PROVENANCE)
    with pytest.raises(SigningFailed, match="text/nothing"):
        signer.sign(b"no picture", "text/nothing", PROVENANCE)
