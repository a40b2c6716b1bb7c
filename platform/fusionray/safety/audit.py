"""The audit log: one JSON line for each request, without pictures, embeddings, file names or keys.

A line holds the sha256 of source and target: whoever has a picture can find its lines, but no line reveals a picture.
It also holds the sha256 of the line before it (`audit_chain.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import Field

from fusionray.config import Section, in_unit
from fusionray.environment import resolve_location
from fusionray.errors import AuditFailed
from fusionray.safety.audit_chain import hash_last_line

ANONYMOUS = "anonymous"
# Characters that a line keeps of a value that the client chooses.
LONGEST_TEXT = 200


class AuditConfig(Section):
    """Where the audit log is written, and how much of it is kept."""

    path: str | None = Field(default=None, description="File of JSON lines; null: no audit log.")
    required: bool = Field(default=True, description="Refuse a request whose line cannot be written.")
    max_bytes: int = Field(
        default=64 * 2**20, ge=1024, description="Largest size of the file; it is rotated before it would grow larger."
    )
    sync: bool = Field(default=True, description="Wait until each line is on the disk, so that a power cut loses none.")
    keep: int = Field(
        default=10,
        ge=1,
        description="Rotated files to keep, as PATH.1 (newest) to PATH.N.",
        json_schema_extra=in_unit("files"),
    )


@dataclass(frozen=True)
class AuditEntry:
    """One request. Hashes are hexadecimal sha256 of the bytes received and sent; None if there are none."""

    request: str
    status: int
    reason: str
    duration_ms: float
    model: str
    bundle: str
    who: str = ANONYMOUS
    source_sha256: str | None = None
    target_sha256: str | None = None
    output_sha256: str | None = None
    num_faces: int | None = None
    reference_sha256: str | None = None


@dataclass(frozen=True)
class SourcesAuditEntry(AuditEntry):
    """One request with several sources, in their order; `source_sha256` is the first of them."""

    sources_sha256: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskAuditEntry(AuditEntry):
    """One request for anything else than a fused picture; what it sends has names of its own."""

    task: str = ""
    inputs_sha256: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyAuditEntry(AuditEntry):
    """One request about the API keys: what was asked for, and the name of the key."""

    task: str = ""
    key: str = ""


class AuditLog:
    """Append to one file, from any thread or process of this machine. `num_lost` counts lines that were not written."""

    def __init__(self, settings: AuditConfig) -> None:
        """Open the log once, so that a file that cannot be written fails at the start.

        Raises: AuditFailed, even if lines are not required; ValueError if the settings name no path.
        """
        if settings.path is None:
            raise ValueError("audit.path: name the file of the log")
        self.settings = settings
        self.path = Path(resolve_location(settings.path))
        self.num_lost = 0
        self.counting = Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.locked():
                os.close(open_private(self.path))
        except OSError as error:
            raise self.describe(error) from None

    def write(self, entry: AuditEntry) -> None:
        """Write the line of a request with a timestamp.

        Raises: AuditFailed if it cannot be written and lines are required; otherwise the line is counted as lost.
        """
        line = {"when": datetime.now(UTC).isoformat(timespec="milliseconds")} | asdict(entry)
        bounded = {key: value[:LONGEST_TEXT] if isinstance(value, str) else value for key, value in line.items()}
        try:
            self.append(bounded)
        except OSError as error:
            with self.counting:
                self.num_lost += 1
            if self.settings.required:
                raise self.describe(error) from None

    def append(self, entry: dict[str, Any]) -> None:
        """Append a whole line or nothing; rotate the file first if it would become too long.

        Raises: OSError.
        """
        with self.locked():
            previous = hash_last_line(self.path, self.path.with_name(f"{self.path.name}.1"))
            line = json.dumps({**entry, "previous": previous}).encode() + b"\n"
            if ends_within_line(self.path):
                # A crash left a part of a line, which stays as it is.
                line = b"\n" + line
            if self.path.exists() and self.path.stat().st_size + len(line) > self.settings.max_bytes:
                self.rotate()
            descriptor = open_private(self.path)
            try:
                size = os.fstat(descriptor).st_size
                if os.write(descriptor, line) != len(line):
                    # The disk became full within the line; the next line must not follow a partial one.
                    os.ftruncate(descriptor, size)
                    raise OSError(f"only a part of the line fits on the disk of {self.path}")
                if self.settings.sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other writers. The log is renamed, so a separate file is locked; the lock ends with the process."""
        descriptor = open_private(self.path.with_name(f"{self.path.name}.lock"))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def rotate(self) -> None:
        """Rename PATH to PATH.1, PATH.1 to PATH.2 and so on; the oldest is overwritten."""
        places = [self.path, *(self.path.with_name(f"{self.path.name}.{n}") for n in range(1, self.settings.keep + 1))]
        for newer, older in reversed(list(pairwise(places))):
            if newer.exists():
                newer.replace(older)

    def describe(self, error: OSError) -> AuditFailed:
        reason = error.strerror or str(error)
        return AuditFailed(
            f"{self.path}: the audit line cannot be written ({reason}); free some space, or fix the permissions"
        )


def ends_within_line(path: Path) -> bool:
    """Tell whether a file ends with a part of a line."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def open_private(path: Path) -> int:
    """Open a file for appending that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) and stat.S_IMODE(mode) & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


def hash_bytes(data: bytes) -> str:
    """Return the sha256 of bytes, hexadecimal."""
    return hashlib.sha256(data).hexdigest()
