from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fusionray.storage import atomic_files
from fusionray.storage import filesystem as storage
from fusionray.storage.atomic_files import create_file, remove_tree, replace_file, replace_private_file, sync_folder


def write_piece(location: str, data: bytes) -> None:
    with storage.open_output(location) as file:
        file.write(data)


def make_folders(root: Path) -> tuple[Path, Path]:
    folder, trash = root / "faces" / "one", root / "trash"
    folder.mkdir(parents=True)
    (folder / "face").write_bytes(b"secret")
    trash.mkdir()
    return folder, trash


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_folder_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        sync_folder(tmp_path)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_a_file_system_without_folder_sync_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    sync_folder(tmp_path)


def test_the_parent_of_a_removed_folder_is_synced_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, trash = make_folders(tmp_path)
    synced: list[tuple[Path, bool]] = []
    monkeypatch.setattr(atomic_files, "sync_folder", lambda path: synced.append((path, folder.exists())))
    assert remove_tree(folder, trash)
    assert synced == [(folder.parent, False)]
    assert list(trash.iterdir()) == []
    assert not remove_tree(folder, trash)


def test_a_folder_is_deleted_even_if_its_parent_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    folder, trash = make_folders(tmp_path)
    monkeypatch.setattr(atomic_files, "sync_folder", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        remove_tree(folder, trash)
    assert not folder.exists()
    assert list(trash.iterdir()) == []


def test_a_replaced_file_has_the_new_content_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", 0o644)
    replace_private_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileExistsError):
        create_file(path, b"other")


@pytest.mark.parametrize("write", [storage.write_atomic, write_piece], ids=["atomic", "stream"])
def test_new_folders_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], None]
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write(str(tmp_path / "run" / "checkpoint" / "info.json"), b"{}")
    # A name survives once the folder that holds it is synced: that of `run`, of `checkpoint`, and of the file.
    assert {str(tmp_path), str(tmp_path / "run"), str(tmp_path / "run" / "checkpoint")} <= set(synced)
    synced.clear()
    write(str(tmp_path / "run" / "checkpoint" / "more.json"), b"{}")
    assert str(tmp_path) not in synced
