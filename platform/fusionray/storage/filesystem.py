"""Files by path or URI: one place that knows local folders and object stores alike."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator
from typing import Any

from pyarrow import fs

OUTPUT_BUFFER_BYTES = 1 << 20


def open_filesystem(location: str) -> tuple[fs.FileSystem, str]:
    """Resolve a local path or a URI (`s3://`, `gs://`, `file://`, ...) to a file system and a path in it."""
    if "://" in location:
        filesystem, path = fs.FileSystem.from_uri(location)
        return filesystem, path.rstrip("/")
    return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(location))


def exists(location: str) -> bool:
    """Tell whether a file or folder is there."""
    filesystem, path = open_filesystem(location)
    return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)


def read_bytes(location: str) -> bytes:
    """Read a whole file."""
    filesystem, path = open_filesystem(location)
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


@contextlib.contextmanager
def open_output(location: str) -> Iterator[Any]:
    """Open a file to be written piece by piece (`write(buffer)`); after the block it is safe from a power cut.

    A block that fails leaves no file behind; one that is killed may leave a part.
    """
    filesystem, path = open_filesystem(location)
    folder = os.path.dirname(path)
    filesystem.create_dir(folder, recursive=True)
    local = isinstance(filesystem, fs.LocalFileSystem)
    try:
        with open(path, "wb", buffering=OUTPUT_BUFFER_BYTES) if local else filesystem.open_output_stream(path) as file:
            yield file
            file.flush()
            if local:
                os.fsync(file.fileno())
        if local:
            sync_folder(folder)
    except BaseException:
        if filesystem.get_file_info(path).type == fs.FileType.File:
            filesystem.delete_file(path)
        raise


def write_atomic(location: str, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none of it, whenever the writer dies.

    Object stores publish a file only when its stream closes; on a local disk a rename does the same.
    """
    filesystem, path = open_filesystem(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        with open_output(location) as stream:
            stream.write(data)
        return
    temporary = f"{path}.{uuid.uuid4().hex}.part"
    with open_output(temporary) as file:
        file.write(data)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make the entries of a local folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Network and user-space file systems that cannot sync a folder keep its entries in order themselves.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_folder(location: str) -> dict[str, int | None]:
    """List the names in a folder with the length of each file, bytes; None for a folder. Empty if there is none."""
    filesystem, path = open_filesystem(location)
    entries = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return {entry.base_name: entry.size if entry.type == fs.FileType.File else None for entry in entries}


def delete(location: str) -> None:
    """Delete a file, or a folder with all that is in it."""
    filesystem, path = open_filesystem(location)
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)
    else:
        filesystem.delete_file(path)


def copy(source: str, target: str) -> None:
    """Copy a file piece by piece, between any two stores."""
    filesystem, path = open_filesystem(source)
    with filesystem.open_input_stream(path) as stream, open_output(target) as file:
        while piece := stream.read(OUTPUT_BUFFER_BYTES):
            file.write(piece)


def join(location: str, *parts: str) -> str:
    """Append path parts to a local path or URI."""
    return "/".join([location.rstrip("/"), *parts])


def sha256_hex(data: bytes) -> str:
    """Hash bytes for manifests and bundles."""
    return hashlib.sha256(data).hexdigest()
