"""Pictures and films that jobs read by URI, from folders that the operator allows."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fusionray.errors import ImageRejected
from fusionray.storage.filesystem import copy_below, open_below, read_below

LONGEST_URI = 2048
# What the opening of a file raises if it is not there, is no file, or may not be read.
MISSING_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO)


def is_plain_uri(uri: str) -> bool:
    """Tell whether a URI names one file by scheme, host and path: no user, no query, no dots, no escaped slashes."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    path = unquote(parts.path)
    segments = path.split("/")[1:]
    printable = all("!" <= letter <= "~" for letter in uri) and all(letter.isprintable() for letter in path)
    return (
        bool(parts.scheme and segments)
        and printable
        and not {"", ".", ".."} & set(segments)
        and len(segments) == parts.path.count("/")
        and not any(mark in uri for mark in "@?#")
        and "\\" not in path
    )


class UriReader:
    """Read files below the allowed folders (`prefixes`, which end with a slash); pictures have `max_bytes` at most."""

    def __init__(self, prefixes: Sequence[str], max_bytes: int) -> None:
        self.prefixes = prefixes
        self.max_bytes = max_bytes

    def find_prefix(self, uri: str) -> str | None:
        """Find the allowed folder of a plain URI."""
        return next((prefix for prefix in self.prefixes if uri.startswith(prefix)), None)

    def read(self, uri: str, role: str) -> bytes:
        """Read a picture; `role` names it in errors.

        Raises: ImageRejected if the file is missing, too large or not allowed; OSError if the storage does not answer.
        """
        with explain(f"{role} picture"):
            data = read_below(uri, self.require_prefix(uri, f"{role} picture"), self.max_bytes)
        if data is None:
            raise ImageRejected("too_large", f"{role} picture: the file is longer than {self.max_bytes} bytes")
        return data

    def read_start(self, uri: str, num_bytes: int) -> tuple[bytes, int]:
        """Read the first bytes of a target; return them, and the length of the file.

        Raises: ImageRejected if the file is missing or not allowed; OSError if the storage does not answer.
        """
        with explain("target"), open_below(uri, self.require_prefix(uri, "target")) as (file, size):
            return bytes(file.read(num_bytes)), size

    def copy(self, uri: str, place: Path, max_bytes: int) -> None:
        """Copy a target to a local file.

        Raises: ImageRejected if the file is missing, too large or not allowed; OSError if the storage does not answer.
        """
        prefix = self.require_prefix(uri, "target")
        with explain("target"):
            fits = copy_below(uri, prefix, place, max_bytes)
        if not fits:
            raise ImageRejected("too_large", f"target: the file is longer than {max_bytes} bytes")

    def require_prefix(self, uri: str, what: str) -> str:
        """Return the allowed folder of a URI.

        Raises: ImageRejected.
        """
        prefix = self.find_prefix(uri) if is_plain_uri(uri) else None
        if prefix is None:
            raise ImageRejected("uri_not_allowed", f"{what}: its URI is not allowed any more; ask the operator")
        return prefix


@contextlib.contextmanager
def explain(what: str) -> Iterator[None]:
    """Turn what the opening of a file raises, if there is none that may be read, into a fault of a client's file."""
    try:
        yield
    except OSError as error:
        if error.errno not in MISSING_ERRORS:
            raise
        detail = f"{what}: no file that the service may read is at its URI; check the URI"
        raise ImageRejected("uri_missing", detail) from None
