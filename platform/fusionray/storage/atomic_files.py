"""Write, replace and remove local files atomically and durably; some with mode 0600."""

from __future__ import annotations

import errno
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
# What `fsync` of a folder raises on file systems that cannot do it.
NO_FOLDER_SYNC_ERRORS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder with `mode`, reduced by the umask, and its missing parents, unless it exists.

    On return the new folders survive a power cut: the parent of each is fsynced.

    Raises: OSError.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode, exist_ok=True)
    sync_folder(folder.parent)


def make_private_folder(folder: Path) -> Path:
    """Make a folder that only its owner may enter; if it exists, restrict its mode."""
    make_folder(folder, FOLDER_MODE)
    if folder.stat().st_mode & 0o077:
        folder.chmod(FOLDER_MODE)
    return folder


def replace_private_file(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably, with mode 0600."""
    replace_file(path, data, FILE_MODE)


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file atomically, replacing an existing one: a reader sees the old content or the new, never a part.

    On return the file and its folder are fsynced. `mode` (reduced by the umask) also replaces the mode of the old file.
    Needs atomic rename within a folder, as on local disks and NFS.

    Raises: OSError; the old file then stays, unless only the fsync of the folder failed.
    """
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PART_SUFFIX}")
    try:
        create_file(part, data, mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def create_file(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    """Write and fsync a new file with `mode`, reduced by the umask; its folder is not fsynced.

    If writing fails or the process is killed, a part of the file may remain.

    Raises: FileExistsError if the file exists; OSError.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append_mark(path: Path) -> int:
    """Append a byte to a private file, durably; return how many there were before. The folder must be there.

    Raises: OSError.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE), "ab") as file:
        before = os.fstat(file.fileno()).st_size
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    return before


def remove_tree(folder: Path, trash: Path) -> bool:
    """Remove a folder atomically: rename it into `trash`, then delete it there.

    Return whether it existed, even if the deletion failed. On return the folder's parent is fsynced. `trash` is on the
    same file system; `remove_abandoned_folders` deletes what a killed process or a failed deletion leaves in it.

    Raises: OSError if the folder cannot be renamed; also if its parent cannot be fsynced, and then it is removed.
    """
    removed = trash / f"{folder.name}.{uuid.uuid4().hex}"
    try:
        folder.rename(removed)
    except FileNotFoundError:
        return False
    try:
        # Nobody may find the folder again after a power cut: it may hold faces that a client had removed.
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(removed, ignore_errors=True)
    return True


def remove_abandoned_folders(parent: Path) -> None:
    """Remove the folders in a `tmp` or `trash` folder that have not changed for `ABANDONED_SECONDS`."""
    for folder in parent.iterdir():
        try:
            age_seconds = time.time() - folder.stat().st_mtime
        except FileNotFoundError:
            continue
        if age_seconds > ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that its entries (creations, renames) survive a power cut.

    Does nothing on network and user-space file systems that cannot fsync a folder.

    Raises: OSError, such as for a disk that fails or is full.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC_ERRORS:
            raise
    finally:
        os.close(descriptor)
