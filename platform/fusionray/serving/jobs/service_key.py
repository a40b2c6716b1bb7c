"""The key of the service, which all replicas share: it encrypts what jobs store of their clients' secrets.

    key file           32 random bytes in hexadecimal digits, mode 0600, outside of the folder of jobs
    folder/key-check   what only the same key computes, so that a replica with another one does not start

Whoever copies or backs up the folder of jobs thus has no handle and no token, as long as the key lies elsewhere.
"""

from __future__ import annotations

import hmac
import os
import secrets
import uuid
from hashlib import sha256
from pathlib import Path

from fusionray.errors import ConfigInvalid
from fusionray.serving.cipher import KEY_BYTES, Cipher, derive_key
from fusionray.serving.config_sections.jobs import JobConfig
from fusionray.storage.atomic_files import create_file, make_private_folder, sync_folder

CHECK_NAME = "key-check"
SECRETS_USE, NAMES_USE, CHECK_USE = b"secrets of jobs", b"names of jobs", b"check of the key"


class ServiceKey:
    """The key of the service, for two uses: to encrypt secrets, and to derive names that nobody else can compute."""

    def __init__(self, secret: bytes) -> None:
        self.cipher = Cipher(secret, SECRETS_USE)
        self.names_key = derive_key(secret, NAMES_USE)
        self.check = derive_key(secret, CHECK_USE).hex()

    def name(self, *parts: str) -> str:
        """Compute 64 hexadecimal digits from parts, the same in every replica (HMAC-SHA256)."""
        message = b"".join(len(part.encode()).to_bytes(8) + part.encode() for part in parts)
        return hmac.new(self.names_key, message, sha256).hexdigest()


def open_key(file: Path, folder: Path) -> ServiceKey:
    """Read the key, or make it at its first use, and check that it is the one of the jobs in a folder.

    Raises: ConfigInvalid for a file that others may read, that holds no key, or the key of another service.
    """
    try:
        make_once(file, secrets.token_hex(KEY_BYTES))
        mode, text = file.stat().st_mode, file.read_text().strip()
    except OSError as error:
        raise ConfigInvalid(f"jobs.key_file: {file}: {error.strerror}; name a file that can be written") from None
    if mode & 0o077:
        raise ConfigInvalid(f"jobs.key_file: others may read {file}; make its mode 0600")
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ConfigInvalid(f"jobs.key_file: {file} holds no key of {KEY_BYTES} bytes in hexadecimal digits")
    key = ServiceKey(secret)
    check = folder / CHECK_NAME
    make_once(check, key.check)
    if not hmac.compare_digest(check.read_text().strip().encode(), key.check.encode()):
        raise ConfigInvalid(
            f"jobs.key_file: {file} is not the key of the jobs in {folder}; restore it, or remove {check} with the jobs"
        )
    return key


def open_jobs_key(settings: JobConfig) -> ServiceKey:
    """Open the key that the settings name.

    Raises: ConfigInvalid, as `open_key` does.
    """
    folder = make_private_folder(Path(settings.folder))
    return open_key(Path(settings.key_file) if settings.key_file else default_key_file(folder), folder)


def default_key_file(folder: Path) -> Path:
    """Return the file beside the folder of jobs, in which the key lies unless the settings name another."""
    return folder.with_name(f"{folder.name}.key")


def make_once(file: Path, text: str) -> None:
    """Write a private file unless it exists; of several processes, one writes it, and it is never seen in part."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        create_file(draft, f"{text}\n".encode())
        try:
            os.link(draft, file)
        except FileExistsError:
            return
        sync_folder(file.parent)
    finally:
        draft.unlink(missing_ok=True)
