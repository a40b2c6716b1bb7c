from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509 import ObjectIdentifier
from cryptography.x509.oid import ExtendedKeyUsageOID
from pydantic import ValidationError

from fusionray.errors import SigningKeyInvalid
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import Signer
from fusionray.safety.signing_keys import PURPOSES, SigningConfig, load_key
from fusionray.safety.verify import verify
from tests.safety.certificates import Authority, issue_self, write_files
from tests.support.pictures import draw_empty

KEYS: dict[str, Callable[[], CertificateIssuerPrivateKeyTypes]] = {
    "es256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "es384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "es512": lambda: ec.generate_private_key(ec.SECP521R1()),
    "ed25519": Ed25519PrivateKey.generate,
    "ps256": lambda: rsa.generate_private_key(65537, 2048),
}


@pytest.mark.parametrize("algorithm", KEYS)
def test_each_kind_of_key_signs_what_verifies_against_its_authority(
    algorithm: str, authority: Authority, tmp_path: Path
) -> None:
    private_key = KEYS[algorithm]()
    key = load_key(write_files(tmp_path, private_key, authority.issue(private_key)))
    assert (key.algorithm, key.is_test, key.name) == (algorithm, False, "Example Studio, Example Studio Ltd")
    data = encode_output(draw_empty(), Provenance("tiny", "0"), signer=Signer(key))
    verdict = verify(data, authority.pem)
    assert verdict.holds
    assert verdict.trusted
    assert verdict.algorithm is not None
    assert verdict.algorithm.lower() == algorithm


@pytest.mark.parametrize("purpose", PURPOSES)
def test_each_accepted_purpose_is_valid_for_c2pa(purpose: str, authority: Authority, tmp_path: Path) -> None:
    private_key = KEYS["es256"]()
    key = load_key(
        write_files(tmp_path, private_key, authority.issue(private_key, purposes=[ObjectIdentifier(purpose)]))
    )
    data = encode_output(draw_empty(), Provenance("tiny", "0"), signer=Signer(key))
    assert verify(data, authority.pem).trusted


def test_a_chain_with_its_root_is_taken_and_one_out_of_order_is_not(authority: Authority, tmp_path: Path) -> None:
    private_key = KEYS["es256"]()
    leaf = authority.issue(private_key)
    Signer(load_key(write_files(tmp_path, private_key, leaf, authority.certificate)))
    with pytest.raises(SigningKeyInvalid, match="certificate 2 did not issue certificate 1"):
        load_key(write_files(tmp_path, private_key, leaf, Authority("Another").certificate))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("expired on", {"starts": timedelta(days=-9), "ends": timedelta(days=-1)}),
        ("valid only from", {"starts": timedelta(days=1)}),
        ("extended key usage", {"purposes": [ExtendedKeyUsageOID.SERVER_AUTH]}),
        ("for digital signatures", {"usages": ["key_agreement"]}),
    ],
)
def test_a_certificate_that_verifiers_do_not_accept_is_refused(
    message: str, change: dict[str, object], authority: Authority, tmp_path: Path
) -> None:
    private_key = KEYS["es256"]()
    certificate = authority.issue(private_key, **change)  # type: ignore[arg-type]
    with pytest.raises(SigningKeyInvalid, match=message):
        load_key(write_files(tmp_path, private_key, certificate))


def test_a_self_signed_certificate_is_refused(tmp_path: Path) -> None:
    private_key = KEYS["es256"]()
    with pytest.raises(SigningKeyInvalid, match="self-signed"):
        load_key(write_files(tmp_path, private_key, issue_self(private_key)))


def test_a_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(SigningKeyInvalid, match=r"signing\.key: is not the private key of"):
        load_key(write_files(tmp_path, KEYS["es256"](), authority.issue(KEYS["es256"]())))


@pytest.mark.parametrize("kind", ["secp256k1", "rsa-1024"])
def test_a_key_that_c2pa_does_not_support_is_refused(kind: str, authority: Authority, tmp_path: Path) -> None:
    curve = ec.generate_private_key(ec.SECP256K1())
    private_key = curve if kind == "secp256k1" else rsa.generate_private_key(65537, 1024)
    with pytest.raises(SigningKeyInvalid, match="cannot sign with a key of this kind"):
        load_key(write_files(tmp_path, private_key, authority.issue(private_key)))


@pytest.mark.parametrize("name", ["signing.pem", "signing.key"])
def test_unreadable_files_are_named_but_not_quoted(name: str, authority: Authority, tmp_path: Path) -> None:
    private_key = KEYS["es256"]()
    settings = write_files(tmp_path, private_key, authority.issue(private_key))
    file = tmp_path / name
    damaged = file.read_text().replace("M", "!", 3)
    file.write_text(damaged)
    with pytest.raises(SigningKeyInvalid, match=f"{name}: contains no readable PEM") as caught:
        load_key(settings)
    assert damaged.splitlines()[1] not in str(caught.value)
    file.unlink()
    with pytest.raises(SigningKeyInvalid, match=f"{name}: cannot be read"):
        load_key(settings)
    file.mkdir()
    with pytest.raises(SigningKeyInvalid, match=f"{name}: cannot be read"):
        load_key(settings)


def test_a_key_with_a_passphrase_is_refused(authority: Authority, tmp_path: Path) -> None:
    private_key = KEYS["es256"]()
    settings = write_files(tmp_path, private_key, authority.issue(private_key))
    locked = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "signing.key").write_bytes(locked)
    with pytest.raises(SigningKeyInvalid, match="passphrase"):
        load_key(settings)


def test_a_key_that_others_can_read_and_a_certificate_that_ends_soon_are_warned_of(
    authority: Authority, tmp_path: Path
) -> None:
    private_key = KEYS["es256"]()
    settings = write_files(tmp_path, private_key, authority.issue(private_key, ends=timedelta(days=3)))
    (tmp_path / "signing.key").chmod(0o640)
    with pytest.warns(RuntimeWarning) as caught:
        load_key(settings)
    text = " ".join(str(warning.message) for warning in caught)
    assert "others can read this private key" in text
    assert "expires in 2 days" in text


def test_a_private_key_is_not_in_its_repr(authority: Authority, tmp_path: Path) -> None:
    private_key = KEYS["es256"]()
    key = load_key(write_files(tmp_path, private_key, authority.issue(private_key)))
    assert "PRIVATE" not in f"{key!r} {key} {vars(Signer(key))}"


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(ValidationError, match="belong together"):
        SigningConfig(certificate="a.pem")
