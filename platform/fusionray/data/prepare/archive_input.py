"""Read pictures from a tar or zip file, member by member in memory; nothing is unpacked to disk."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

from fusionray.data.prepare.picture_entries import PictureEntries, PictureEntry
from fusionray.data.prepare.picture_input import (
    DecodedPicture,
    DroppedPicture,
    InputListing,
    as_dropped,
    identity_from_path,
    is_unsafe_path,
    not_visible_error,
    printable,
    wrapper_length,
)
from fusionray.errors import ImageRejected, InputMissing
from fusionray.faces.image_files.decode import ImageLimits, decode_image
from fusionray.storage import filesystem as storage

# Errors of the standard library for damaged or unsupported archives. zipfile raises RuntimeError, or a subclass, for a
# missing password and an unknown compression method.
_ARCHIVE_ERRORS = (
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


class ArchiveInput:
    """A tar (plain, gzip, bzip2, xz) or zip file with the layout of a folder; its content shows the type."""

    synthetic = False

    def __init__(self, location: str, limits: ImageLimits, *, max_members: int, max_bytes: int) -> None:
        self._location = location
        self._limits = limits
        self._max_members = max_members
        self._max_bytes = max_bytes

    def signature(self) -> str:
        """Return size and modification time of the archive."""
        filesystem, path = storage.open_filesystem(self._location)
        info = filesystem.get_file_info(path)
        return f"{info.size} {info.mtime_ns}"

    def list_entries(self) -> InputListing:
        """List all members, in the order of the archive.

        Raises:
            InputMissing: the archive is damaged, or larger than the limits allow.
        """
        dropped: list[DroppedPicture] = []
        members: list[tuple[str, int, int]] = []
        unpacked_bytes = 0
        try:
            for number, (name, size_bytes, offset, fault) in enumerate(self._members()):
                unpacked_bytes += size_bytes
                self._check_limits(number + 1, unpacked_bytes)
                path = name.removeprefix("./")
                if is_unsafe_path(path):
                    dropped.append(
                        DroppedPicture(printable(name), "unsafe_name", "its name points outside the archive")
                    )
                elif fault:
                    dropped.append(DroppedPicture(printable(name), "unreadable", fault))
                else:
                    members.append((name, size_bytes, offset))
        except _ARCHIVE_ERRORS as error:
            raise InputMissing(
                f"{self._location}: the archive is damaged ({error}); download or create it again"
            ) from error
        skip = wrapper_length([name.removeprefix("./") for name, _, _ in members])
        entries = PictureEntries(
            PictureEntry(identity_from_path(path), printable(path), name, size_bytes, offset)
            for name, size_bytes, offset in members
            for path in (name.removeprefix("./")[skip:],)
        )
        return InputListing(entries, dropped)

    def read(self, entries: Sequence[PictureEntry]) -> Iterator[DecodedPicture | DroppedPicture]:
        """Read and decode members, in the order of the archive.

        A compressed tar can only be read forwards; a step back would decompress it again from the start.
        """
        with self._open() as file:
            archive = zipfile.ZipFile(file) if _is_zip(file) else _open_tar_stream(file)
            for entry in sorted(entries, key=lambda entry: entry.offset):
                try:
                    yield DecodedPicture(entry, decode_image(self._load(archive, entry), self._limits))
                except ImageRejected as error:
                    yield as_dropped(entry, error)

    def _load(self, archive: Any, entry: PictureEntry) -> bytes:
        limit = self._limits.max_bytes
        if entry.size_bytes > limit:
            raise ImageRejected("too_large", f"the file has {entry.size_bytes} bytes, over the limit of {limit}")
        try:
            if isinstance(archive, zipfile.ZipFile):
                # The size in the header may be wrong: read up to the limit; the decoder checks the data.
                with archive.open(entry.locator) as member:
                    return bytes(member.read(limit + 1))
            archive.seek(entry.offset)
            return bytes(archive.read(entry.size_bytes))
        except _ARCHIVE_ERRORS as error:
            raise ImageRejected("unreadable", f"cannot be read from the archive: {error}") from error

    def _open(self) -> IO[bytes]:
        filesystem, path = storage.open_filesystem(self._location)
        if not filesystem.get_file_info(path).is_file:
            raise not_visible_error(self._location)
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
            with tarfile.open(fileobj=_open_tar_stream(file), mode="r:") as archive:
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
    """Return whether a file is a tar or zip archive, by its content."""
    filesystem, path = storage.open_filesystem(location)
    with filesystem.open_input_file(path) as file:
        if _is_zip(file):
            return True
        try:
            with tarfile.open(fileobj=_open_tar_stream(file), mode="r:"):
                return True
        except _ARCHIVE_ERRORS:
            return False


def _open_tar_stream(file: Any) -> Any:
    """Open a seekable stream of the plain tar in a file that may be compressed."""
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
    """Return whether a file is a zip, by its first bytes.

    zipfile.is_zipfile checks the last bytes, and accepts a tar whose last member is a zip.
    """
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    return bytes(start) in {b"PK\x03\x04", b"PK\x05\x06"}
