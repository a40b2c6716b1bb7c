"""Files by path or URI: one place that knows local folders and object stores alike."""

from __future__ import annotations

import hashlib
import os
import uuid

from pyarrow import fs


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


def write_atomic(location: str, data: bytes) -> None:
    """Write a file so that a reader sees all of it or none of it, whenever the writer dies.

    Object stores publish a file only when its stream closes; on a local disk a rename does the same.
    """
    filesystem, path = open_filesystem(location)
    filesystem.create_dir(os.path.dirname(path), recursive=True)
    if not isinstance(filesystem, fs.LocalFileSystem):
        with filesystem.open_output_stream(path) as stream:
            stream.write(data)
        return
    temporary = f"{path}.{uuid.uuid4().hex}.part"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def join(location: str, *parts: str) -> str:
    """Append path parts to a local path or URI."""
    return "/".join([location.rstrip("/"), *parts])


def sha256_hex(data: bytes) -> str:
    """Hash bytes for manifests and bundles."""
    return hashlib.sha256(data).hexdigest()
