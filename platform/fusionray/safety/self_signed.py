"""A test key for a service without a key of its own: a CA and a certificate marked TEST, which nobody trusts."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fusionray.errors import SigningKeyInvalid
from fusionray.storage.atomic_files import create_file

# Issuer in every manifest that a test key signs; verifiers recognise the key by it.
TEST_ORGANISATION = "fusionray TEST KEY"
FOLDER_NAME = "test-signing-key"
CERTIFICATE_NAME = "certificate.pem"
KEY_NAME = "key.pem"
CA_NAME = "ca.pem"
VALID_DAYS = 3650
KEY_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def make_test_key(folder: Path) -> None:
    """Make `folder` with a test key, unless it exists. If several processes start at once, one of them makes it.

    Raises: SigningKeyInvalid if the folder cannot be written.
    """
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as place:
            draft = Path(place) / folder.name
            draft.mkdir(mode=0o700)
            for name, text in build_test_key().items():
                create_file(draft / name, text)
            publish(draft, folder)
    except OSError as error:
        raise SigningKeyInvalid(
            f"{folder}: the test key cannot be written ({error.strerror}); set signing.certificate and signing.key, "
            "or a writable folder as signing.test_key_folder"
        ) from None


def publish(draft: Path, folder: Path) -> None:
    """Rename a folder to its path. A rename never replaces a folder with files, so the first process wins."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def build_test_key() -> dict[str, bytes]:
    """Make a CA, discard its key, and return the PEM files of a certificate that it issued."""
    ca_key, leaf_key = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    ca_name, leaf_name = build_name("TEST CA, trusted by nobody"), build_name("TEST KEY, made without an operator")
    ca = (
        begin_certificate(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(build_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    leaf = (
        begin_certificate(leaf_name, ca_name, leaf_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(build_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return {
        CERTIFICATE_NAME: leaf.public_bytes(Encoding.PEM) + ca.public_bytes(Encoding.PEM),
        CA_NAME: ca.public_bytes(Encoding.PEM),
        KEY_NAME: leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }


def begin_certificate(
    subject: x509.Name, issuer: x509.Name, public_key: EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # Clocks of machines that share the key may differ.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
    )


def build_name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, TEST_ORGANISATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def build_usage(*granted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in granted for usage in KEY_USAGES})
