"""Files that only their owner may read, written so that a reader sees all of one or none of it."""

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
# A draft this old belongs to a process that died.
ABANDONED_SECONDS = 3600.0


def make_private_folder(folder: Path) -> Path:
    """Make a folder that only its owner may enter, and take away what others may do in one that is there."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(FOLDER_MODE)
    return folder


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 atomically; when this returns, it is safe from a power cut.

    Assumes that a rename within a folder is atomic, as it is on local disks and NFS.
    """
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PART_SUFFIX}")
    try:
        write_new(part, data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_new(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 that is not there yet; one that is killed may leave a part of it.

    Raises: FileExistsError if it is.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def remove_tree(folder: Path, bin_folder: Path) -> bool:
    """Remove a folder at once for all who look, then its files; tell whether it was there.

    `bin_folder` lies in the same file system; what a killed process leaves in it is removed by whoever empties it.
    """
    condemned = bin_folder / f"{folder.name}.{uuid.uuid4().hex}"
    try:
        folder.rename(condemned)
    except FileNotFoundError:
        return False
    shutil.rmtree(condemned, ignore_errors=True)
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove from a folder of drafts those that nobody has worked on for long."""
    for draft in folder.iterdir():
        try:
            age_seconds = time.time() - draft.stat().st_mtime
        except FileNotFoundError:
            continue
        if age_seconds > ABANDONED_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder survive a power cut, where the file system can promise that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
