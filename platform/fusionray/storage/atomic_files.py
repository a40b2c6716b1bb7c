"""Local files that are written, replaced and removed atomically; the private ones only their owner may read."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from pathlib import Path

FILE_MODE = 0o600
FOLDER_MODE = 0o700
PART_SUFFIX = ".part"
# Names of the folders in which a store prepares new entries and removes old ones.
TMP_NAME = "tmp"
TRASH_NAME = "trash"
# An entry of `tmp` or `trash` this old belongs to a process that died.
ABANDONED_SECONDS = 3600.0


def make_private_folder(folder: Path) -> Path:
    """Make a folder that only its owner may enter; if it exists, restrict its mode."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(FOLDER_MODE)
    return folder


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 as `replace_file` does."""
    replace_file(path, data, FILE_MODE)


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file so that a reader sees all of it or the one before; after the call it survives a power cut.

    `mode` is reduced by the umask. A rename within a folder must be atomic, as it is on local disks and NFS.
    """
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PART_SUFFIX}")
    try:
        write_new(part, data, mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_new(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    """Write a new file and flush it to the disk; if the process is killed, a part of the file may remain.

    Raises: FileExistsError if the file exists.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def remove_tree(folder: Path, trash: Path) -> bool:
    """Remove a folder, for all readers at once; return whether it existed.

    `trash` is a folder of the same file system; `remove_abandoned` removes what a killed process leaves in it.
    """
    removed = trash / f"{folder.name}.{uuid.uuid4().hex}"
    try:
        folder.rename(removed)
    except FileNotFoundError:
        return False
    shutil.rmtree(removed, ignore_errors=True)
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove the entries of a `tmp` or `trash` folder that no process has changed for long."""
    for draft in folder.iterdir():
        try:
            age_seconds = time.time() - draft.stat().st_mtime
        except FileNotFoundError:
            continue
        if age_seconds > ABANDONED_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Network and user-space file systems that cannot sync a folder keep its entries in order themselves.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
