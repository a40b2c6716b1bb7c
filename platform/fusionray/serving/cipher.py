"""Encryption of what the service stores: AES-256-GCM under keys that are derived from one secret."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fusionray.errors import NotDecrypted

NONCE_BYTES = 12
KEY_BYTES = 32


def derive_key(secret: bytes, use: bytes) -> bytes:
    """Derive the key [32] for one use of a secret, with HKDF-SHA256; keys of other uses tell nothing about it."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=use).derive(secret)


class Cipher:
    """Encrypt and decrypt contents with the key for one use of a secret.

    encrypted = nonce [12] | AES-256-GCM(content)

    What is `bound` to a content is authenticated with it, and not stored: it must be given again to decrypt.
    """

    def __init__(self, secret: bytes, use: bytes) -> None:
        self.cipher = AESGCM(derive_key(secret, use))

    def encrypt(self, content: bytes, bound: bytes) -> bytes:
        """Encrypt a content."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self.cipher.encrypt(nonce, content, bound)

    def decrypt(self, encrypted: bytes, bound: bytes) -> bytes:
        """Decrypt a content.

        Raises: NotDecrypted if a bit of it, of what is bound to it, or of the secret has changed.
        """
        try:
            return self.cipher.decrypt(encrypted[:NONCE_BYTES], encrypted[NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            raise NotDecrypted("the content was changed, or encrypted under another key") from None
