"""A folder is listed completely, with links, pipes and names that are not UTF-8."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest
from pyarrow import fs

from fusionray.data.prepare.folder_input import REMOTE_READS, FolderInput
from fusionray.data.prepare.picture_input import DecodedPicture, DroppedPicture
from fusionray.errors import InputMissing
from fusionray.faces.image_files.decode import ImageLimits, encode_image
from fusionray.storage import filesystem as storage

PICTURE = encode_image(np.full((40, 50, 3), 90, np.uint8), "png")


def fill(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(PICTURE)


def folder(root: Path, **limits: int) -> FolderInput:
    return FolderInput(str(root), ImageLimits(**limits))


def test_the_folder_of_a_picture_is_its_identity(tmp_path: Path) -> None:
    fill(tmp_path, "ann/1.png", "ann/2.png", "bob/1.png", "deep/er/cid/9.png", "loner.png")
    identities = {entry.source: entry.identity for entry in folder(tmp_path).list_entries().entries}
    assert identities == {
        "ann/1.png": "ann",
        "ann/2.png": "ann",
        "bob/1.png": "bob",
        "deep/er/cid/9.png": "deep/er/cid",
        "loner.png": "loner.png",
    }


def test_pictures_are_read_and_other_files_are_dropped_with_a_reason(tmp_path: Path) -> None:
    fill(tmp_path, "a/good.png")
    (tmp_path / "a/empty.png").write_bytes(b"")
    (tmp_path / "a/letter.txt").write_text("dear sir")
    (tmp_path / "a/film.gif").write_bytes(b"GIF89a" + bytes(90))
    (tmp_path / "a/cut.png").write_bytes(PICTURE[: len(PICTURE) // 2])
    (tmp_path / "a/heavy.png").write_bytes(PICTURE + b"\0" * 5000)
    (tmp_path / "a/tiny.png").write_bytes(encode_image(np.zeros((8, 60, 3), np.uint8), "png"))
    source = folder(tmp_path, max_bytes=len(PICTURE) + 100)
    results = list(source.read(source.list_entries().entries))
    good = [result for result in results if isinstance(result, DecodedPicture)]
    assert [picture.image.shape for picture in good] == [(40, 50, 3)]
    reasons = {result.source: result.reason for result in results if isinstance(result, DroppedPicture)}
    assert reasons == {
        "a/empty.png": "not_an_image",
        "a/letter.txt": "not_an_image",
        "a/film.gif": "unknown_format",
        "a/cut.png": "damaged",
        "a/heavy.png": "too_large",
        "a/tiny.png": "too_small",
    }


def test_a_folder_of_pgm_files_is_read(tmp_path: Path) -> None:
    """Old face sets are such folders."""
    grey = np.arange(40 * 50, dtype=np.uint16).reshape(40, 50).astype(np.uint8)
    for person in ("s1", "s2"):
        (tmp_path / person).mkdir()
        for number in range(1, 4):
            (tmp_path / person / f"{number}.pgm").write_bytes(b"P5\n50 40\n255\n" + grey.tobytes())
    source = folder(tmp_path)
    results = list(source.read(source.list_entries().entries))
    assert len(results) == 6
    for result in results:
        assert isinstance(result, DecodedPicture), result
        assert np.array_equal(result.image, np.repeat(grey[..., None], 3, axis=2))


def test_files_are_listed_in_the_order_of_their_paths(tmp_path: Path) -> None:
    # In ASCII, "-" and "." sort before the slash and "0" behind it.
    fill(tmp_path, "a/2.png", "a/1/z.png", "a-b/1.png", "a.png", "a0/1.png", "a/1-2.png", "b/1.png")
    sources = [entry.source for entry in folder(tmp_path).list_entries().entries]
    assert sources == sorted(sources)
    assert len(sources) == 7


def test_loops_pipes_and_broken_links_are_listed_and_do_not_hang(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png")
    (tmp_path / "a/up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "a/gone.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(tmp_path / "a/pipe.png")
    listing = folder(tmp_path).list_entries()
    assert [entry.source for entry in listing.entries] == ["a/1.png"]
    assert {drop.source: drop.reason for drop in listing.dropped} == {
        "a/gone.png": "unreadable",
        "a/pipe.png": "unreadable",
        "self": "unreadable",
    }


def test_a_linked_folder_of_pictures_is_followed(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", "1.png")
    (tmp_path / "input").mkdir()
    (tmp_path / "input/ann").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert [entry.identity for entry in folder(tmp_path / "input").list_entries().entries] == ["ann"]


def test_names_that_are_no_utf8_are_read_and_listed_printably(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9 \n'x'"
    os.mkdir(odd)
    with open(odd + b"/\xff.png", "wb") as file:
        file.write(PICTURE)
    source = pickle.loads(pickle.dumps(folder(tmp_path)))
    (entry,) = source.list_entries().entries
    assert entry.identity == "caf\\xe9 \n'x'"
    assert entry.source.encode() == b"caf\\xe9 \n'x'/\\xff.png"
    assert isinstance(next(source.read([pickle.loads(pickle.dumps(entry))])), DecodedPicture)


def test_a_file_that_vanishes_after_listing_is_dropped_as_unreadable(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png")
    source = folder(tmp_path)
    entries = source.list_entries().entries
    (tmp_path / "a/1.png").unlink()
    (dropped,) = source.read(entries)
    assert isinstance(dropped, DroppedPicture)
    assert dropped.reason == "unreadable"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_permission_is_dropped_as_unreadable(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png")
    (tmp_path / "a/1.png").chmod(0)
    source = folder(tmp_path)
    (dropped,) = source.read(source.list_entries().entries)
    assert isinstance(dropped, DroppedPicture)
    assert dropped.reason == "unreadable"


def test_the_signature_follows_names_sizes_and_times(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.png", "a/2.png")
    first = folder(tmp_path).signature()
    assert folder(tmp_path).signature() == first
    os.utime(tmp_path / "a/1.png", ns=(1, 1))
    touched = folder(tmp_path).signature()
    (tmp_path / "a/2.png").rename(tmp_path / "a/3.png")
    renamed = folder(tmp_path).signature()
    assert len({first, touched, renamed}) == 3


def test_a_worker_that_does_not_see_the_folder_raises(tmp_path: Path) -> None:
    fill(tmp_path / "input", "a/1.png")
    source = folder(tmp_path / "input")
    entries = source.list_entries().entries
    (tmp_path / "input").rename(tmp_path / "moved")
    with pytest.raises(InputMissing, match="storage that all nodes share"):
        next(source.read(entries))


def test_an_object_store_is_listed_and_read_like_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    for path in ("bucket/faces/ann/1.png", "bucket/faces/bob/2.png"):
        memory.pipe(f"/{path}", PICTURE)
    store = fs.PyFileSystem(fs.FSSpecHandler(memory))
    monkeypatch.setattr(storage, "open_filesystem", lambda location: (store, "bucket/faces"))
    source = FolderInput("memory://bucket/faces", ImageLimits())
    entries = source.list_entries().entries
    assert [entry.identity for entry in entries] == ["ann", "bob"]
    assert [type(result) for result in source.read(entries)] == [DecodedPicture, DecodedPicture]
    memory.rm("/bucket", recursive=True)


def test_files_of_an_object_store_are_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    together = threading.Barrier(REMOTE_READS)

    class SlowStore(fs.FSSpecHandler):
        def open_input_stream(self, path: str) -> object:
            # Breaks, unless as many files are opened before the first one is read.
            together.wait(timeout=30)
            return super().open_input_stream(path)

    for number in range(REMOTE_READS):
        memory.pipe(f"/bucket/faces/ann/{number:02d}.png", PICTURE)
    store = fs.PyFileSystem(SlowStore(memory))
    monkeypatch.setattr(storage, "open_filesystem", lambda location: (store, "bucket/faces"))
    source = FolderInput("memory://bucket/faces", ImageLimits())
    entries = source.list_entries().entries
    read = list(source.read(entries))
    memory.rm("/bucket", recursive=True)
    assert [type(result) for result in read] == [DecodedPicture] * REMOTE_READS
    assert [result.entry for result in read if isinstance(result, DecodedPicture)] == list(entries)
