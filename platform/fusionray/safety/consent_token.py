"""Consent tokens: a consent manager signs a source's sha256 and an expiry; the service shares the signing secret."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stat
import time
import warnings
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fusionray.errors import ConfigInvalid, ConsentRefused

SHORTEST_SECRET_BYTES = 32
LONGEST_TOKEN = 2048
# Version of the format; tokens of other versions are refused.
VERSION = "frc1"


class ConsentClaim(BaseModel):
    """Content of a token. `expires` is Unix time, seconds; without `key_name`, any API key may present it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source_sha256: str
    expires: float
    key_name: str | None = None

    def check(self, source_sha256: str, key_name: str) -> None:
        """Return if the claim covers this request.

        Raises: ConsentRefused.
        """
        if not time.time() < self.expires:
            raise ConsentRefused("consent_expired", "the consent token has expired")
        if self.source_sha256 != source_sha256:
            raise ConsentRefused("consent_mismatch", "the consent token is for another source picture")
        if self.key_name is not None and self.key_name != key_name:
            raise ConsentRefused("consent_mismatch", "the consent token is for another API key")


def make_token(secret: bytes, source_sha256: str, expires: float, key_name: str | None = None) -> str:
    """Sign the consent to use the source file with this sha256 until `expires` (Unix time, seconds).

    The token is `frc1.CLAIM.MAC`: base64url of JSON, and of the HMAC-SHA256 over everything before the last dot.
    """
    claim = ConsentClaim(source_sha256=source_sha256.lower(), expires=float(expires), key_name=key_name)
    signed = f"{VERSION}.{encode(claim.model_dump_json().encode())}"
    return f"{signed}.{encode(sign(secret, signed))}"


def read_token(token: str, secret: bytes) -> ConsentClaim:
    """Check the signature of a token and return its content.

    Raises: ConsentRefused if this secret did not sign it.
    """
    signed, _, mac = token.rpartition(".")
    version, _, claim = signed.partition(".")
    try:
        # The signature is checked first, so that nothing unsigned is parsed.
        genuine = len(token) <= LONGEST_TOKEN and hmac.compare_digest(decode(mac), sign(secret, signed))
        if genuine and version == VERSION:
            return ConsentClaim.model_validate_json(decode(claim))
    except (binascii.Error, ValueError, ValidationError):
        pass
    raise ConsentRefused("consent_invalid", "the consent token is damaged, or was signed with another secret")


def read_secret(path: Path) -> bytes:
    """Read the secret that signs tokens; warn if others can read it.

    Raises: ConfigInvalid if it cannot be read or is too short.
    """
    try:
        secret = path.read_bytes().strip()
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read ({error.strerror}); check path and access") from None
    if len(secret) < SHORTEST_SECRET_BYTES:
        raise ConfigInvalid(
            f"{path}: a secret needs at least {SHORTEST_SECRET_BYTES} bytes; make one with `openssl rand -hex 32`"
        )
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.warn(f"{path}: others can read this secret; run chmod 600", RuntimeWarning, stacklevel=2)
    return secret


def sign(secret: bytes, text: str) -> bytes:
    return hmac.new(secret, text.encode(), hashlib.sha256).digest()


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
