"""Pictures in a folder, on a disk or in an object store."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence

from pyarrow import fs

from fusionray.data.prepare.source import Dropped, Entry, Listing, Picture, as_dropped, identity_of, printable, unseen
from fusionray.errors import ImageRejected
from fusionray.faces.decode import ImageLimits, decode_image
from fusionray.storage import filesystem as storage


class FolderSource:
    """A folder: `<identity>/<image>`, deeper (the whole folder path is the identity) or flat.

    Links are followed, each folder once. Everything that is not a folder is an entry: what is no picture is dropped
    by reason and not passed over in silence.
    """

    synthetic = False

    def __init__(self, location: str, limits: ImageLimits) -> None:
        self._location = location
        self._limits = limits
        self._listing: Listing | None = None
        self._signature = ""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_listing": None}

    def signature(self) -> str:
        """Give a hash of all names, sizes and modification times."""
        self.list_entries()
        return self._signature

    def list_entries(self) -> Listing:
        """List all files below the folder, sorted by path."""
        if self._listing is None:
            filesystem, root = storage.open_filesystem(self._location)
            local = isinstance(filesystem, fs.LocalFileSystem)
            found = _walk_local(root) if local else _walk_remote(filesystem, root)
            digest = hashlib.sha256()
            entries, dropped = [], []
            for path, size_bytes, modified_ns, fault in sorted(found):
                digest.update(f"{printable(path)}\0{size_bytes}\0{modified_ns}\0{fault}\n".encode())
                if fault:
                    dropped.append(Dropped(printable(path), "unreadable", fault))
                else:
                    entries.append(Entry(identity_of(path), printable(path), path, size_bytes))
            self._signature = digest.hexdigest()
            self._listing = Listing(entries, dropped)
        return self._listing

    def read(self, entries: Sequence[Entry]) -> Iterator[Picture | Dropped]:
        """Read and decode files one by one.

        Raises:
            InputMissing: this machine does not see the folder at all.
        """
        filesystem, root = storage.open_filesystem(self._location)
        if filesystem.get_file_info(root).type != fs.FileType.Directory:
            raise unseen(self._location)
        for entry in entries:
            try:
                yield Picture(entry, decode_image(self._load(filesystem, root, entry), self._limits))
            except ImageRejected as error:
                yield as_dropped(entry, error)

    def _load(self, filesystem: fs.FileSystem, root: str, entry: Entry) -> bytes:
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


Found = tuple[str, int, int, str]
"""Relative path, bytes, modification time in ns, and a fault ("" if it can be tried)."""


def _walk_local(root: str) -> Iterator[Found]:
    pending = [""]
    seen: set[tuple[int, int]] = set()
    while pending:
        folder = pending.pop()
        try:
            status = os.stat(os.path.join(root, folder))
            # A folder that was seen already is a link back up, or a second way to the same pictures.
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            children = sorted(os.listdir(os.path.join(root, folder)))
        except OSError as error:
            yield folder or ".", 0, 0, f"the folder cannot be listed: {error.strerror}"
            continue
        for child in children:
            path = f"{folder}/{child}" if folder else child
            try:
                status = os.stat(os.path.join(root, path))
            except OSError as error:
                yield path, 0, 0, f"cannot be read: {error.strerror}"
                continue
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
            elif stat.S_ISREG(status.st_mode):
                yield path, status.st_size, status.st_mtime_ns, ""
            else:
                # Opening a pipe or a device could wait for ever.
                yield path, 0, 0, "neither a file nor a folder"


def _walk_remote(filesystem: fs.FileSystem, root: str) -> Iterator[Found]:
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True)):
        if info.type == fs.FileType.File:
            # Some stores give paths with a leading slash, whatever they were asked for.
            path = info.path.lstrip("/")[len(root.lstrip("/")) :].lstrip("/")
            yield path, info.size or 0, info.mtime_ns or 0, ""
