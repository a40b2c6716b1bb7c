"""Files by local path or URI: the same functions for local folders and object stores."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import fs

from fusionray.storage.atomic_files import make_folder, replace_file, sync_folder

OUTPUT_BUFFER_BYTES = 1 << 20


def open_filesystem(location: str) -> tuple[fs.FileSystem, str]:
    """Resolve a local path or a URI (`s3://`, `gs://`, `file://`, ...) to a file system and a path in it."""
    if "://" in location:
        filesystem, path = fs.FileSystem.from_uri(location)
        return filesystem, path.rstrip("/")
    return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(location))


def exists(location: str) -> bool:
    """Tell whether a file or folder exists."""
    filesystem, path = open_filesystem(location)
    return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)


def is_file(location: str) -> bool:
    """Tell whether a file exists."""
    filesystem, path = open_filesystem(location)
    return bool(filesystem.get_file_info(path).type == fs.FileType.File)


def read_bytes(location: str) -> bytes:
    """Read a whole file."""
    filesystem, path = open_filesystem(location)
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def read_below(location: str, folder: str, max_bytes: int) -> bytes | None:
    """Read a file that lies in a folder, or below it; None if it is longer than `max_bytes`, before it is read.

    Links of a local file system that lead out of the folder are not followed, also if they are made meanwhile.

    Raises: FileNotFoundError if there is no such file there; OSError.
    """
    filesystem, path = open_filesystem(location)
    if isinstance(filesystem, fs.LocalFileSystem):
        return read_local_below(path, open_filesystem(folder)[1], max_bytes)
    info = filesystem.get_file_info(path)
    if info.type != fs.FileType.File:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
    if info.size > max_bytes:
        return None
    with filesystem.open_input_stream(path) as stream:
        data = bytes(stream.read(max_bytes + 1))
    return data if len(data) <= max_bytes else None


def read_local_below(path: str, folder: str, max_bytes: int) -> bytes | None:
    """Read a local file as `read_below` does: what was opened is checked, so that nobody can exchange it afterwards."""
    # Without O_NONBLOCK, a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not opened.is_relative_to(os.path.realpath(folder)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if status.st_size > max_bytes:
            return None
        data = file.read(max_bytes + 1)
    return data if len(data) <= max_bytes else None


@contextlib.contextmanager
def open_output(location: str) -> Iterator[Any]:
    """Open a file for writing (`write(buffer)`); after the block it survives a power cut.

    If the block raises, the file is deleted; if the process is killed, a part of the file may remain.
    """
    filesystem, path = open_filesystem(location)
    folder = os.path.dirname(path)
    local = isinstance(filesystem, fs.LocalFileSystem)
    if local:
        make_folder(Path(folder))
    else:
        filesystem.create_dir(folder, recursive=True)
    try:
        with open(path, "wb", buffering=OUTPUT_BUFFER_BYTES) if local else filesystem.open_output_stream(path) as file:
            yield file
            file.flush()
            if local:
                os.fsync(file.fileno())
        if local:
            sync_folder(Path(folder))
    except BaseException:
        if filesystem.get_file_info(path).type == fs.FileType.File:
            filesystem.delete_file(path)
        raise


def write_atomic(location: str, data: bytes) -> None:
    """Write a file so that a reader sees all of it or nothing, even if the writer dies.

    An object store publishes a file when its stream closes; on a local disk a rename does the same.
    """
    filesystem, path = open_filesystem(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        with open_output(location) as stream:
            stream.write(data)
        return
    make_folder(Path(path).parent)
    replace_file(Path(path), data)


def list_folder(location: str) -> dict[str, int | None]:
    """List the names in a folder, with the bytes of each file and None for a folder; empty if there is no folder."""
    filesystem, path = open_filesystem(location)
    entries = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return {entry.base_name: entry.size if entry.type == fs.FileType.File else None for entry in entries}


def delete(location: str) -> None:
    """Delete a file, or a folder with its content."""
    filesystem, path = open_filesystem(location)
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)
    else:
        filesystem.delete_file(path)


def copy(source: str, target: str) -> None:
    """Copy a file in pieces, between any two locations."""
    filesystem, path = open_filesystem(source)
    with filesystem.open_input_stream(path) as stream, open_output(target) as file:
        while piece := stream.read(OUTPUT_BUFFER_BYTES):
            file.write(piece)


def join(location: str, *parts: str) -> str:
    """Append path parts to a local path or URI."""
    return "/".join([location.rstrip("/"), *parts])


def sha256_hex(data: bytes) -> str:
    """Hash bytes as sha256, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
