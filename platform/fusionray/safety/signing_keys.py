"""The key that signs manifests: read and checked from the operator's files, or a generated test key."""

from __future__ import annotations

import stat
import warnings
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import Field, model_validator

from fusionray.config import Section
from fusionray.environment import find_data_folder, resolve_location
from fusionray.errors import SigningKeyInvalid
from fusionray.safety.self_signed import CERTIFICATE_NAME, FOLDER_NAME, KEY_NAME, TEST_ORGANISATION, make_test_key

CURVES = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}
SMALLEST_RSA_BITS = 2048
# Purposes of a certificate that C2PA accepts: C2PA specification, "Certificate profiles".
PURPOSES = (
    ExtendedKeyUsageOID.EMAIL_PROTECTION.dotted_string,
    "1.3.6.1.5.5.7.3.36",  # documentSigning
    "1.3.6.1.4.1.62558.2.1",  # c2pa-kp-claimSigning
)
FEW_DAYS = 14


class SigningConfig(Section):
    """Who signs the outputs. Without certificate and key a test key signs, which nobody trusts."""

    certificate: str | None = Field(default=None, description="PEM file: the signing certificate, then its chain.")
    key: str | None = Field(default=None, description="PEM file of the private key; only the service may read it.")
    test_key_folder: str | None = Field(
        default=None, description="Folder of the test key; null: the user's data folder."
    )

    @model_validator(mode="after")
    def check_pair(self) -> SigningConfig:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together: set both, or neither to sign with a test key")
        return self


@dataclass(frozen=True)
class SigningKey:
    """A checked key. `chain` is PEM, leaf first; `algorithm` is C2PA's name; `repr` hides the private key."""

    chain: bytes
    private_key: bytes = field(repr=False)
    algorithm: str
    name: str
    expires: datetime
    is_test: bool


def load_key(settings: SigningConfig) -> SigningKey:
    """Read the operator's key, or the test key, which the first call makes.

    Raises: SigningKeyInvalid with one line that names the file.
    """
    if settings.certificate is not None and settings.key is not None:
        return read_key(Path(resolve_location(settings.certificate)), Path(resolve_location(settings.key)))
    named = settings.test_key_folder
    folder = Path(resolve_location(named)) if named else find_data_folder() / FOLDER_NAME
    make_test_key(folder)
    return read_key(folder / CERTIFICATE_NAME, folder / KEY_NAME)


def read_key(certificate_file: Path, key_file: Path) -> SigningKey:
    """Read and check a certificate chain and its private key; warn if others can read the key, or if it expires soon.

    Raises: SigningKeyInvalid.
    """
    chain = parse_chain(certificate_file)
    private_key = parse_key(key_file)
    leaf = chain[0]
    if spki(leaf) != private_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
        raise SigningKeyInvalid(f"{key_file}: is not the private key of the certificate in {certificate_file}")
    check_leaf(leaf, certificate_file)
    check_chain(chain, certificate_file)
    if stat.S_IMODE(key_file.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.warn(f"{key_file}: others can read this private key; run chmod 600", RuntimeWarning, stacklevel=3)
    days = (leaf.not_valid_after_utc - datetime.now(UTC)).days
    if days < FEW_DAYS:
        warnings.warn(f"{certificate_file}: expires in {days} days; get a new one", RuntimeWarning, stacklevel=3)
    return SigningKey(
        chain=b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain),
        private_key=private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        algorithm=choose_algorithm(private_key, key_file),
        name=", ".join(
            filter(None, (read_name(leaf, NameOID.COMMON_NAME), read_name(leaf, NameOID.ORGANIZATION_NAME)))
        ),
        expires=leaf.not_valid_after_utc,
        is_test=read_name(leaf, NameOID.ORGANIZATION_NAME) == TEST_ORGANISATION,
    )


def parse_chain(file: Path) -> list[x509.Certificate]:
    """Read the certificates of a PEM file.

    Raises: SigningKeyInvalid.
    """
    try:
        return x509.load_pem_x509_certificates(read_file(file))
    except (ValueError, UnsupportedAlgorithm):
        raise SigningKeyInvalid(f"{file}: contains no readable PEM certificate") from None


def parse_key(file: Path) -> CertificateIssuerPrivateKeyTypes:
    """Read a private key. Errors never repeat the content of the file.

    Raises: SigningKeyInvalid.
    """
    try:
        private_key = load_pem_private_key(read_file(file), password=None)
    except TypeError:
        raise SigningKeyInvalid(f"{file}: the private key has a passphrase; store it without one, chmod 600") from None
    except (ValueError, UnsupportedAlgorithm):
        raise SigningKeyInvalid(f"{file}: contains no readable PEM private key") from None
    choose_algorithm(private_key, file)
    return private_key  # type: ignore[return-value]  # a kind for which choose_algorithm found an algorithm


def read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SigningKeyInvalid(f"{file}: cannot be read ({error.strerror}); check path and access") from None


def choose_algorithm(private_key: object, file: Path) -> str:
    """Choose the signature algorithm of a key.

    Raises: SigningKeyInvalid if C2PA does not support the kind of key.
    """
    if isinstance(private_key, Ed25519PrivateKey):
        return "ed25519"
    if isinstance(private_key, EllipticCurvePrivateKey) and private_key.curve.name in CURVES:
        return CURVES[private_key.curve.name]
    if isinstance(private_key, RSAPrivateKey) and private_key.key_size >= SMALLEST_RSA_BITS:
        return "ps256"
    wanted = f"EC (P-256, P-384, P-521), Ed25519 or RSA of {SMALLEST_RSA_BITS} bits or more"
    raise SigningKeyInvalid(f"{file}: C2PA cannot sign with a key of this kind; use {wanted}")


def check_leaf(leaf: x509.Certificate, file: Path) -> None:
    """Refuse a certificate whose signatures no verifier accepts.

    Raises: SigningKeyInvalid.
    """
    now = datetime.now(UTC)
    if leaf.not_valid_after_utc < now:
        raise SigningKeyInvalid(
            f"{file}: the certificate expired on {leaf.not_valid_after_utc:%Y-%m-%d}; get a new one"
        )
    if leaf.not_valid_before_utc > now:
        raise SigningKeyInvalid(
            f"{file}: the certificate is valid only from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M}"
        )
    if leaf.issuer == leaf.subject:
        raise SigningKeyInvalid(f"{file}: the first certificate is self-signed; C2PA needs one that a CA has issued")
    try:
        purposes = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        raise SigningKeyInvalid(f"{file}: the certificate has no key usage; get one for digital signatures") from None
    if not usage.digital_signature or usage.key_cert_sign:
        raise SigningKeyInvalid(f"{file}: the first certificate must be for digital signatures, not for issuing others")
    if not set(PURPOSES) & {purpose.dotted_string for purpose in purposes}:
        wanted = "emailProtection, documentSigning or C2PA claim signing"
        raise SigningKeyInvalid(
            f"{file}: the certificate is for another purpose (extended key usage); get one for {wanted}"
        )


def check_chain(chain: list[x509.Certificate], file: Path) -> None:
    """Refuse a chain in which a certificate is not followed by its issuer.

    Raises: SigningKeyInvalid.
    """
    for position, (certificate, issuer) in enumerate(pairwise(chain), 1):
        try:
            certificate.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            raise SigningKeyInvalid(
                f"{file}: certificate {position + 1} did not issue certificate {position}; order them from leaf to root"
            ) from None


def spki(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def read_name(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str | None:
    found = certificate.subject.get_attributes_for_oid(oid)
    return str(found[0].value) if found else None
