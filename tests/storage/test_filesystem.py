from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from fusionray.storage import filesystem as storage


def test_a_written_file_reads_back_and_leaves_no_other_file(tmp_path: Path) -> None:
    location = str(tmp_path / "deep" / "er" / "file.bin")
    storage.write_atomic(location, b"one")
    storage.write_atomic(location, b"two")
    assert storage.read_bytes(location) == b"two"
    assert os.listdir(tmp_path / "deep" / "er") == ["file.bin"]


def test_a_file_uri_names_the_same_file_as_its_path(tmp_path: Path) -> None:
    uri = (tmp_path / "a.bin").as_uri()
    storage.write_atomic(uri, b"x")
    assert (tmp_path / "a.bin").read_bytes() == b"x"
    assert storage.read_bytes(uri) == storage.read_bytes(str(tmp_path / "a.bin"))
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_file_is_copied_whole_from_a_path_to_a_uri(tmp_path: Path) -> None:
    data = os.urandom(2 * storage.OUTPUT_BUFFER_BYTES + 17)
    storage.write_atomic(str(tmp_path / "a"), data)
    storage.copy(str(tmp_path / "a"), (tmp_path / "deep" / "b").as_uri())
    assert (tmp_path / "deep" / "b").read_bytes() == data


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    target = tmp_path / "occupied"
    (target / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="occupied"):
        storage.write_atomic(str(target), b"data")
    assert os.listdir(tmp_path) == ["occupied"]


def test_an_interrupted_write_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = tmp_path / "file"
    storage.write_atomic(str(location), b"old")

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        storage.write_atomic(str(location), b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert location.read_bytes() == b"old"


@pytest.mark.parametrize("store", ["", "file://", "fsspec+memory://"])
def test_a_file_is_written_piece_by_piece_listed_and_deleted_in_every_store(tmp_path: Path, store: str) -> None:
    folder = f"{store}{tmp_path}/a"
    with storage.open_output(f"{folder}/b/file") as file:
        file.write(b"one")
        file.write(np.arange(3, dtype=np.uint8).data)
    assert storage.read_bytes(f"{folder}/b/file") == b"one\0\1\2"
    assert storage.list_folder(f"{folder}/b") == {"file": 6}
    assert storage.list_folder(folder) == {"b": None}
    assert storage.list_folder(f"{folder}/nothing") == {}
    storage.delete(f"{folder}/b/file")
    assert storage.list_folder(f"{folder}/b") == {}
    storage.delete(f"{store}{tmp_path}/a")
    assert not storage.exists(folder)


@pytest.mark.parametrize("store", ["", "fsspec+memory://"])
def test_a_file_whose_writing_fails_does_not_exist(tmp_path: Path, store: str) -> None:
    location = f"{store}{tmp_path}/file"

    def fail() -> None:
        with storage.open_output(location) as file:
            file.write(b"half")
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        fail()
    assert not storage.exists(location)


def test_exists_is_true_for_files_and_folders_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert storage.exists(str(tmp_path))
    assert storage.exists(str(tmp_path / "file"))
    assert not storage.exists(str(tmp_path / "nothing"))


def test_join_appends_to_paths_and_uris() -> None:
    assert storage.join("/a/b/", "c", "d") == "/a/b/c/d"
    assert storage.join("s3://bucket/x", "y") == "s3://bucket/x/y"


def test_sha256_hex_is_sha256() -> None:
    assert storage.sha256_hex(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_a_folder_may_come_and_go_while_it_is_listed(tmp_path: Path) -> None:
    folder, is_over = tmp_path / "run", threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            folder.mkdir()
            folder.rmdir()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert all(storage.list_folder(str(folder)) == {} for _ in range(4000))
    finally:
        is_over.set()
        thread.join()
