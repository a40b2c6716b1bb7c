"""Pictures in a tar or zip file, read member by member in memory; nothing is ever unpacked to a disk."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

from fusionray.data.prepare.source import (
    Dropped,
    Entry,
    Listing,
    Picture,
    as_dropped,
    identity_of,
    is_unsafe,
    printable,
    unseen,
    without_wrapper,
)
from fusionray.errors import ImageRejected, InputMissing
from fusionray.faces.decode import ImageLimits, decode_image
from fusionray.storage import filesystem as storage

# What the standard library raises where an archive is damaged or beyond it. zipfile says
# RuntimeError, or a kind of it, for a missing password and for a compression that it does not know.
_FAULTS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    OverflowError,
)


class ArchiveSource:
    """A tar (plain, gzip, bzip2, xz) or zip file with the layout of a folder inside; known by content, not by name."""

    synthetic = False

    def __init__(self, location: str, limits: ImageLimits, *, max_members: int, max_bytes: int) -> None:
        self._location = location
        self._limits = limits
        self._max_members = max_members
        self._max_bytes = max_bytes

    def signature(self) -> str:
        """Give size and modification time of the archive."""
        filesystem, path = storage.open_filesystem(self._location)
        info = filesystem.get_file_info(path)
        return f"{info.size} {info.mtime_ns}"

    def list_entries(self) -> Listing:
        """List all members, in the order of the archive.

        Raises:
            InputMissing: the archive is damaged, or larger than the limits allow.
        """
        entries: list[Entry] = []
        dropped: list[Dropped] = []
        members: list[tuple[str, int, int]] = []
        unpacked_bytes = 0
        try:
            for number, (name, size_bytes, offset, fault) in enumerate(self._members()):
                unpacked_bytes += size_bytes
                self._check_limits(number + 1, unpacked_bytes)
                path = name.removeprefix("./")
                if is_unsafe(path):
                    dropped.append(Dropped(printable(name), "unsafe_name", "its name points out of the archive"))
                elif fault:
                    dropped.append(Dropped(printable(name), "unreadable", fault))
                else:
                    members.append((name, size_bytes, offset))
        except _FAULTS as error:
            raise InputMissing(f"{self._location}: the archive is damaged ({error}); fetch or make it again") from error
        skip = without_wrapper([name.removeprefix("./") for name, _, _ in members])
        for name, size_bytes, offset in members:
            path = name.removeprefix("./")[skip:]
            entries.append(Entry(identity_of(path), printable(path), name, size_bytes, offset))
        return Listing(entries, dropped)

    def read(self, entries: Sequence[Entry]) -> Iterator[Picture | Dropped]:
        """Read and decode members, in the order in which they lie in the archive.

        A packed tar can only be read forwards: going back to an earlier member costs unpacking from the start.
        """
        with self._open() as file:
            archive = zipfile.ZipFile(file) if _is_zip(file) else _unpacked(file)
            for entry in sorted(entries, key=lambda entry: entry.offset):
                try:
                    yield Picture(entry, decode_image(self._load(archive, entry), self._limits))
                except ImageRejected as error:
                    yield as_dropped(entry, error)

    def _load(self, archive: Any, entry: Entry) -> bytes:
        limit = self._limits.max_bytes
        if entry.size_bytes > limit:
            raise ImageRejected("too_large", f"the file has {entry.size_bytes} bytes, over the limit of {limit}")
        try:
            if isinstance(archive, zipfile.ZipFile):
                # The stated size may be a lie, so reading stops at the limit and the decoder judges what came.
                with archive.open(entry.locator) as member:
                    return bytes(member.read(limit + 1))
            archive.seek(entry.offset)
            return bytes(archive.read(entry.size_bytes))
        except _FAULTS as error:
            raise ImageRejected("unreadable", f"cannot be read from the archive: {error}") from error

    def _open(self) -> IO[bytes]:
        filesystem, path = storage.open_filesystem(self._location)
        if not filesystem.get_file_info(path).is_file:
            raise unseen(self._location)
        file: IO[bytes] = filesystem.open_input_file(path)
        return file

    def _members(self) -> Iterator[tuple[str, int, int, str]]:
        with self._open() as file:
            if _is_zip(file):
                for info in zipfile.ZipFile(file).infolist():
                    if not info.is_dir():
                        fault = "it is encrypted" if info.flag_bits & 1 else ""
                        yield info.filename, info.file_size, info.header_offset, fault
                return
            with tarfile.open(fileobj=_unpacked(file), mode="r:") as archive:
                for member in archive:
                    if member.isdir():
                        continue
                    plain = member.isreg() and not member.issparse()
                    yield member.name, member.size, member.offset_data, "" if plain else "not a plain file"

    def _check_limits(self, num_members: int, unpacked_bytes: int) -> None:
        if num_members > self._max_members:
            raise InputMissing(f"{self._location}: over {self._max_members} members; raise max_archive_members")
        if unpacked_bytes > self._max_bytes:
            raise InputMissing(f"{self._location}: unpacks to over {self._max_bytes} bytes; raise max_archive_bytes")


def is_archive(location: str) -> bool:
    """Tell by content whether a file is a tar or zip archive."""
    filesystem, path = storage.open_filesystem(location)
    with filesystem.open_input_file(path) as file:
        if _is_zip(file):
            return True
        try:
            with tarfile.open(fileobj=_unpacked(file), mode="r:"):
                return True
        except _FAULTS:
            return False


def _unpacked(file: Any) -> Any:
    """Open a seekable stream of the plain tar inside a file, whatever packed it."""
    file.seek(0)
    start = file.read(6)
    file.seek(0)
    if start[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)
    if start[:3] == b"BZh":
        return bz2.BZ2File(file)
    if start == b"\xfd7zXZ\0":
        return lzma.LZMAFile(file)
    return file


def _is_zip(file: IO[bytes]) -> bool:
    """Tell a zip by its first bytes.

    zipfile's own test looks at the last ones, and takes a tar whose last member is a zip for one.
    """
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    return bytes(start) in {b"PK\x03\x04", b"PK\x05\x06"}
