"""TLS between all processes of Ray: two nodes train, and who has no certificate of their authority gets no answer."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.faults.driver import Driver
from tests.faults.local_nodes import LocalNodes
from tests.support.tiny_run import IMAGES, count_images, write_run

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def build_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def issue(
    name: str, key: EllipticCurvePrivateKey, authority: str, signed_by: EllipticCurvePrivateKey, *, is_authority: bool
) -> bytes:
    """Issue a certificate for the nodes' addresses, as PEM."""
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), *(x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(build_name(name))
        .issuer_name(build_name(authority))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return builder.sign(signed_by, hashes.SHA256()).public_bytes(Encoding.PEM)


def write_certificates(folder: Path) -> dict[str, str]:
    """Write an authority's certificate and one for all nodes; return the variables that name them to Ray."""
    authority, node = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    (folder / "ca.pem").write_bytes(issue("authority", authority, "authority", authority, is_authority=True))
    (folder / "node.pem").write_bytes(issue("node", node, "authority", authority, is_authority=False))
    (folder / "node.key").write_bytes(node.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": str(folder / "ca.pem"),
        "RAY_TLS_SERVER_CERT": str(folder / "node.pem"),
        "RAY_TLS_SERVER_KEY": str(folder / "node.key"),
    }


def is_listened_to(address: str, context: ssl.SSLContext) -> bool:
    """Tell whether the head answers somebody who speaks HTTP/2 over TLS."""
    host, port = address.split(":")
    context.set_alpn_protocols(["h2"])
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    try:
        with (
            socket.create_connection((host, int(port)), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            encrypted.sendall(preface)
            return len(encrypted.recv(9)) > 0
    except OSError:
        return False


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=50)
@pytest.mark.timeout(400)
def test_two_nodes_train_over_tls_and_listen_to_nobody_without_a_certificate(tmp_path: Path) -> None:
    tls = write_certificates(tmp_path)
    with LocalNodes(2, 2, environment=tls) as nodes:
        stranger = ssl.create_default_context(cafile=tls["RAY_TLS_CA_CERT"])
        assert not is_listened_to(nodes.address, stranger)
        stranger.load_cert_chain(tls["RAY_TLS_SERVER_CERT"], tls["RAY_TLS_SERVER_KEY"])
        assert is_listened_to(nodes.address, stranger)
        # One worker on each node.
        settings = write_run(tmp_path, tmp_path / "runs", workers={"num_workers": 2, "cpus_per_worker": 2})
        driver = Driver(settings, nodes.environment["RAY_TMPDIR"], environment=nodes.environment | tls)
        driver.start()
        try:
            assert driver.wait(300) == 0, driver.log
        finally:
            if driver.process is not None and driver.process.poll() is None:
                driver.process.kill()
                driver.process.wait()
    assert count_images(driver.output) == IMAGES
