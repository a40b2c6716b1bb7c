"""Read pictures from a folder, on a disk or in an object store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyarrow import fs

from fusionray.data.prefetch import map_ahead
from fusionray.data.prepare.picture_entries import PictureEntries, PictureEntry
from fusionray.data.prepare.picture_input import (
    DecodedPicture,
    DroppedPicture,
    InputListing,
    as_dropped,
    identity_from_path,
    not_visible_error,
    printable,
)
from fusionray.errors import ImageRejected
from fusionray.faces.image_files.decode import ImageLimits, decode_image
from fusionray.storage import filesystem as storage

# Files that are read at the same time, while pictures are worked on: an object store takes long to begin an answer.
LOCAL_READS = 1
REMOTE_READS = 16


class FolderInput:
    """A folder: `<identity>/<image>`, deeper (the whole folder path is the identity) or flat.

    Links are followed, each folder once. Each file is an entry; a file that is not a picture is dropped with its
    reason, not ignored.
    """

    synthetic = False

    def __init__(self, location: str, limits: ImageLimits) -> None:
        self._location = location
        self._limits = limits
        self._listing: InputListing | None = None
        self._signature = ""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_listing": None}

    def signature(self) -> str:
        """Return a hash of all names, sizes and modification times."""
        self.list_entries()
        return self._signature

    def list_entries(self) -> InputListing:
        """List all files below the folder, sorted by path."""
        if self._listing is None:
            filesystem, root = storage.open_filesystem(self._location)
            local = isinstance(filesystem, fs.LocalFileSystem)
            found = _walk_local(root) if local else sorted(_walk_remote(filesystem, root))
            digest = hashlib.sha256()
            dropped: list[DroppedPicture] = []
            entries = PictureEntries(_sort_out(found, digest, dropped))
            self._signature = digest.hexdigest()
            self._listing = InputListing(entries, dropped)
        return self._listing

    def read(self, entries: Sequence[PictureEntry]) -> Iterator[DecodedPicture | DroppedPicture]:
        """Read files ahead, and decode them one by one.

        Raises:
            InputMissing: the folder is not visible on this node.
        """
        filesystem, root = storage.open_filesystem(self._location)
        if filesystem.get_file_info(root).type != fs.FileType.Directory:
            raise not_visible_error(self._location)

        def load(entry: PictureEntry) -> bytes | ImageRejected:
            try:
                return self._load(filesystem, root, entry)
            except ImageRejected as error:
                return error

        at_once = LOCAL_READS if isinstance(filesystem, fs.LocalFileSystem) else REMOTE_READS
        with contextlib.closing(map_ahead(load, entries, at_once=at_once)) as loaded:
            for entry, data in zip(entries, loaded, strict=True):
                try:
                    if isinstance(data, ImageRejected):
                        raise data
                    yield DecodedPicture(entry, decode_image(data, self._limits))
                except ImageRejected as error:
                    yield as_dropped(entry, error)

    def _load(self, filesystem: fs.FileSystem, root: str, entry: PictureEntry) -> bytes:
        if entry.size_bytes > self._limits.max_bytes:
            raise ImageRejected(
                "too_large", f"the file has {entry.size_bytes} bytes, over the limit of {self._limits.max_bytes}"
            )
        try:
            if isinstance(filesystem, fs.LocalFileSystem):
                with open(os.path.join(root, entry.locator), "rb") as file:
                    return file.read(self._limits.max_bytes + 1)
            with filesystem.open_input_stream(f"{root}/{entry.locator}") as stream:
                return bytes(stream.read(self._limits.max_bytes + 1))
        except OSError as error:
            raise ImageRejected("unreadable", f"cannot be read: {error.strerror or error}") from error


FoundFile = tuple[str, int, int, str]
"""Relative path, bytes, modification time in ns, and an error ("" if there is none)."""


def _sort_out(found: Iterable[FoundFile], digest: Any, dropped: list[DroppedPicture]) -> Iterator[PictureEntry]:
    """Yield the files that may be pictures; add all to the digest, and those that cannot be read to `dropped`."""
    for path, size_bytes, modified_ns, error_text in found:
        digest.update(f"{printable(path)}\0{size_bytes}\0{modified_ns}\0{error_text}\n".encode())
        if error_text:
            dropped.append(DroppedPicture(printable(path), "unreadable", error_text))
        else:
            yield PictureEntry(identity_from_path(path), printable(path), path, size_bytes)


def _walk_local(root: str) -> Iterator[FoundFile]:
    """Walk a folder in the order of the paths, holding the names of no more folders than it is deep."""
    # What comes next is last; folders end with a slash.
    pending = ["/"]
    seen: set[tuple[int, int]] = set()
    while pending:
        path = pending.pop().removeprefix("/")
        try:
            status = os.stat(os.path.join(root, path))
        except OSError as error:
            yield path, 0, 0, f"cannot be read: {error.strerror}"
            continue
        if stat.S_ISDIR(status.st_mode):
            # Skip folders that were listed before: links to a parent, or second links to the same folder.
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            try:
                pending += _list_backwards(root, path)
            except OSError as error:
                yield path.rstrip("/") or ".", 0, 0, f"the folder cannot be listed: {error.strerror}"
        elif stat.S_ISREG(status.st_mode):
            yield path, status.st_size, status.st_mtime_ns, ""
        else:
            # Opening a pipe or a device could block forever.
            yield path, 0, 0, "neither a file nor a folder"


def _list_backwards(root: str, folder: str) -> list[str]:
    """List the paths in a folder, the last one first. With their slash, folders sort as the paths below them do."""
    with os.scandir(os.path.join(root, folder)) as children:
        return sorted((f"{folder}{child.name}{'/' if _is_folder(child) else ''}" for child in children), reverse=True)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _walk_remote(filesystem: fs.FileSystem, root: str) -> Iterator[FoundFile]:
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True)):
        if info.type == fs.FileType.File:
            # Some stores return paths with a leading slash.
            path = info.path.lstrip("/")[len(root.lstrip("/")) :].lstrip("/")
            yield path, info.size or 0, info.mtime_ns or 0, ""
