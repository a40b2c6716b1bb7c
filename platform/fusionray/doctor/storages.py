"""Checks of storages: written, read back, listed and removed, large and small files."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host
from fusionray.storage import filesystem

LARGE_BYTES, SMALL_FILES, SMALL_BYTES = 16 * 2**20, 50, 1024


def check_storages(host: Host) -> Iterator[Finding]:
    """Write to each storage that the user names, and read back what was written."""
    for uri in host.options.storages:
        try:
            evidence = try_storage(f"{uri.rstrip('/')}/fusionray-doctor-{secrets.token_hex(6)}")
        except (OSError, ValueError) as error:
            remedy = "check the path, the credentials and the permissions on this node"
            yield Finding("storage", "error", f"{uri}: {' '.join(str(error).split())[:200]}", remedy, "fix setting")
        else:
            yield Finding("storage", "ok", f"{uri}: {evidence}")


def try_storage(folder: str) -> str:
    """Write a large file and many small ones, read them, and remove all; return the speeds.

    Raises: OSError; ValueError if something else is read than was written.
    """
    data = secrets.token_bytes(LARGE_BYTES)
    try:
        started = time.perf_counter()
        filesystem.write_atomic(f"{folder}/large", data)
        written = time.perf_counter()
        if filesystem.read_bytes(f"{folder}/large") != data:
            raise ValueError("what was read is not what was written")
        read = time.perf_counter()
        for number in range(SMALL_FILES):
            filesystem.write_atomic(f"{folder}/small-{number}", data[:SMALL_BYTES])
        small = time.perf_counter()
    finally:
        with contextlib.suppress(OSError):
            filesystem.delete(folder)
    mb = LARGE_BYTES / 1e6
    return (
        f"writes {mb / (written - started):.0f} MB/s, reads {mb / (read - written):.0f} MB/s, "
        f"{SMALL_FILES / (small - read):.0f} small files/s"
    )
