"""Certificates of a test CA, valid and invalid."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fusionray.safety.self_signed import build_usage
from fusionray.safety.signing_keys import SigningConfig

EMAIL = ExtendedKeyUsageOID.EMAIL_PROTECTION


class Authority:
    """A CA that issues signing certificates."""

    def __init__(self, name: str = "Example Authority") -> None:
        self.key = generate_private_key(SECP256R1())
        self.name = build_name(name)
        self.certificate = (
            self.begin(self.name, self.key, timedelta(days=-1), timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(build_usage("key_cert_sign", "crl_sign"), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def begin(
        self, subject: x509.Name, key: CertificateIssuerPrivateKeyTypes, starts: timedelta, ends: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + starts)
            .not_valid_after(now + ends)
        )

    def issue(
        self,
        key: CertificateIssuerPrivateKeyTypes,
        *,
        name: str = "Example Studio",
        starts: timedelta = timedelta(days=-1),
        ends: timedelta = timedelta(days=365),
        purposes: Sequence[x509.ObjectIdentifier] = (EMAIL,),
        usages: Sequence[str] = ("digital_signature",),
    ) -> x509.Certificate:
        """Issue a certificate for a key; `starts` and `ends` count from now."""
        return (
            self.begin(build_name(name), key, starts, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(build_usage(*usages), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def issue_self(key: CertificateIssuerPrivateKeyTypes, name: str = "Example Studio") -> x509.Certificate:
    """Make a self-signed certificate."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(build_name(name))
        .issuer_name(build_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(build_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([EMAIL]), critical=False)
        .sign(key, None if isinstance(key, Ed25519PrivateKey) else hashes.SHA256())
    )


def write_files(folder: Path, key: CertificateIssuerPrivateKeyTypes, *certificates: x509.Certificate) -> SigningConfig:
    """Write an operator's PEM files, and return the settings that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    certificate_file, key_file = folder / "signing.pem", folder / "signing.key"
    certificate_file.write_bytes(b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key_file.chmod(0o600)
    return SigningConfig(certificate=str(certificate_file), key=str(key_file))


def build_name(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"{name} Ltd"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
