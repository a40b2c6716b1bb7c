"""Files by local path or URI: the same functions for local folders and object stores."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pyarrow import fs

from fusionray.storage.atomic_files import FILE_MODE, PART_SUFFIX, make_folder, replace_file, sync_folder
from fusionray.storage.retries import ask_again

OUTPUT_BUFFER_BYTES = 1 << 20
# Arrow's names of the stores without folders. Made all the same, each is a request, also those above that are not ours.
STORES_WITHOUT_FOLDERS = ("s3", "gcs")
COPY_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


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
    if isinstance(filesystem, fs.LocalFileSystem):
        return Path(path).read_bytes()

    def read() -> bytes:
        # A stream of Arrow would ask an object store for 256 KiB at a time.
        with filesystem.open_input_file(path) as file:
            data = bytes(file.read())
        # Arrow asks for the length first, then for so many bytes: of an object that was written anew in between, it
        # gets a part.
        if filesystem.get_file_info(path).size != len(data):
            raise OSError(f"{location}: was written while it was read")
        return data

    return ask_again(filesystem, read)


def read_below(location: str, folder: str, max_bytes: int) -> bytes | None:
    """Read a file that lies in a folder, or below it; None if it is longer than `max_bytes`, before it is read.

    Raises: FileNotFoundError if there is no such file there; OSError.
    """
    with open_below(location, folder) as (file, size):
        data = bytes(file.read(max_bytes + 1)) if size <= max_bytes else None
    return data if data is not None and len(data) <= max_bytes else None


def copy_below(location: str, folder: str, place: Path, max_bytes: int) -> bool:
    """Copy a file that lies in a folder, or below it, to `place`, a local file that nobody sees before it is complete.

    Returns: whether it has at most `max_bytes` bytes; a longer one is not copied.

    Raises: FileNotFoundError if there is no such file there; OSError.
    """
    part = place.with_name(f"{place.name}.{uuid.uuid4().hex}{PART_SUFFIX}")
    copied = 0
    try:
        with open_below(location, folder) as (source, size), open(os.open(part, COPY_FLAGS, FILE_MODE), "wb") as file:
            if size > max_bytes:
                return False
            while piece := source.read(OUTPUT_BUFFER_BYTES):
                copied += len(piece)
                if copied > max_bytes:
                    return False
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(place.parent)
    return True


@contextlib.contextmanager
def open_below(location: str, folder: str) -> Iterator[tuple[Any, int]]:
    """Open a file that lies in a folder, or below it; yield the file (`read(size)`) and its length in bytes.

    Links of a local file system that lead out of the folder are not followed, also if they are made meanwhile.

    Raises: FileNotFoundError if there is no such file there; OSError.
    """
    filesystem, path = open_filesystem(location)
    if isinstance(filesystem, fs.LocalFileSystem):
        with open_local_below(path, open_filesystem(folder)[1]) as file:
            yield file, os.fstat(file.fileno()).st_size
        return
    info = filesystem.get_file_info(path)
    if info.type != fs.FileType.File:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), location)
    with filesystem.open_input_stream(path) as stream:
        yield stream, info.size


def open_local_below(path: str, folder: str) -> BinaryIO:
    """Open a local file as `open_below` does: what was opened is checked, so that nobody can exchange it afterwards."""
    # Without O_NONBLOCK, a pipe would wait for its writer.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
    opened = Path(os.readlink(f"/proc/self/fd/{file.fileno()}"))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or not opened.is_relative_to(os.path.realpath(folder)):
        file.close()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return file


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
        make_remote_folder(filesystem, folder)
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


def make_remote_folder(filesystem: fs.FileSystem, folder: str) -> None:
    """Make a folder in a file system that is not local, if that has folders."""
    if filesystem.type_name not in STORES_WITHOUT_FOLDERS:
        filesystem.create_dir(folder, recursive=True)


def write_atomic(location: str, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part, even if the writer dies.

    An object store publishes a file when its stream closes; on a local disk a rename does the same. If the write fails,
    the old file stays.
    """
    filesystem, path = open_filesystem(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        make_remote_folder(filesystem, os.path.dirname(path))
        # Not `open_output`, which deletes the file if its block raises: what was not uploaded is not published, and the
        # file that it would delete is the old one.
        with filesystem.open_output_stream(path) as stream:
            stream.write(data)
        return
    make_folder(Path(path).parent)
    replace_file(Path(path), data)


def append(location: str, data: bytes) -> None:
    """Append to a file, which is created if it is missing; in an object store, the object is written anew.

    Raises: OSError.
    """
    if "://" in location:
        write_atomic(location, (read_bytes(location) if exists(location) else b"") + data)
        return
    with Path(location).open("ab") as file:
        file.write(data)


def list_folder(location: str) -> dict[str, int | None]:
    """List the names in a folder, with the bytes of each file and None for a folder; empty if there is no folder."""
    filesystem, path = open_filesystem(location)
    try:
        entries = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    except FileNotFoundError:
        # It was made, or deleted, while Arrow looked: that checks only after it failed whether there is a folder.
        return {}
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

    def copy_whole() -> None:
        with filesystem.open_input_stream(path) as stream, open_output(target) as file:
            while piece := stream.read(OUTPUT_BUFFER_BYTES):
                file.write(piece)

    ask_again(filesystem, copy_whole)


def join(location: str, *parts: str) -> str:
    """Append path parts to a local path or URI."""
    return "/".join([location.rstrip("/"), *parts])


def sha256_hex(data: bytes) -> str:
    """Hash bytes as sha256, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
