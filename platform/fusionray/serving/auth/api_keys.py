"""The API keys that a service accepts: those of a file, which may change while it runs, and the operator's key."""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fusionray.environment import KEY_VARIABLE, read_api_key
from fusionray.errors import ConfigInvalid
from fusionray.serving.auth.key_file import OPERATOR, ApiKey, read_keys

logger = logging.getLogger("ray.serve")

CHECK_SECONDS = 0.5


SHORTEST_KEY = 16


@dataclass(frozen=True)
class Stamp:
    """What changes when a file is replaced or rewritten."""

    inode: int = 0
    changed_ns: int = 0
    num_bytes: int = -1


class ApiKeyStore:
    """Hold all keys: those of a file, which is read again when it changes, and the operator's key.

    Raises: ConfigInvalid if the file is invalid at the start. If it becomes invalid later, the store logs an error and
    keeps the keys that it read last, so that a typing error does not lock out all clients.
    """

    def __init__(
        self,
        file: Path | None = None,
        operator_digest: bytes | None = None,
        *,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file = file
        self.operator = (
            None if operator_digest is None else ApiKey(name=OPERATOR, sha256=operator_digest.hex(), admin=True)
        )
        self.wall_clock = wall_clock
        self.clock = clock
        self.lock = threading.Lock()
        self.checked_at = clock()
        self.stamp = find_stamp(file)
        self.keys = self.collect()

    @property
    def is_empty(self) -> bool:
        """Tell whether no key is required: neither a file nor an operator's key is set."""
        return self.file is None and self.operator is None

    def find(self, presented: str) -> ApiKey | None:
        """Find the key that a client presents; None if it is unknown or expired.

        The key is compared with every other in constant time, so that the duration reveals nothing.
        """
        self.refresh()
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).hexdigest().encode()
        found = None
        for expected, key in self.keys:
            if hmac.compare_digest(digest, expected):
                found = key
        if found is None or (found.expires is not None and found.expires.timestamp() <= self.wall_clock()):
            return None
        return found

    def refresh(self) -> None:
        """Read the file again if it has changed; check at most every half second."""
        with self.lock:
            if self.file is None or self.clock() - self.checked_at < CHECK_SECONDS:
                return
            self.checked_at = self.clock()
            stamp = find_stamp(self.file)
            if stamp == self.stamp:
                return
            self.stamp = stamp
            try:
                self.keys = self.collect()
            except ConfigInvalid as error:
                logger.error("%s; the keys that were read before stay in force", error)

    def collect(self) -> tuple[tuple[bytes, ApiKey], ...]:
        """Join the keys of the file and of the operator, each with its digest as bytes."""
        keys = [*(read_keys(self.file) if self.file else ()), *([self.operator] if self.operator else ())]
        return tuple((key.sha256.encode(), key) for key in keys)


def find_stamp(file: Path | None) -> Stamp:
    """Read what identifies the current version of a file."""
    try:
        found = file.stat() if file else None
    except OSError:
        found = None
    return Stamp() if found is None else Stamp(found.st_ino, found.st_mtime_ns, found.st_size)


def read_key_digest() -> bytes | None:
    """Read the API key from the environment; return its sha256, or None if there is no key.

    Raises: ConfigInvalid if the key is too short to withstand guessing.
    """
    key = read_api_key()
    if key is None:
        return None
    if len(key) < SHORTEST_KEY:
        raise ConfigInvalid(
            f"{KEY_VARIABLE}: a key needs at least {SHORTEST_KEY} characters; "
            "make one with `python -c 'import secrets; print(secrets.token_urlsafe())'`"
        )
    return hashlib.sha256(key.encode()).digest()
