"""Archives are read in memory; their members cannot write outside or exhaust memory."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fusionray.data.prepare.archive_input import ArchiveInput, is_archive
from fusionray.data.prepare.picture_input import DecodedPicture, DroppedPicture
from fusionray.errors import InputMissing
from fusionray.faces.image_files.decode import ImageLimits, encode_image

FILES = {
    "ann/1.png": encode_image(np.full((40, 50, 3), 10, np.uint8), "png"),
    "ann/2.png": encode_image(np.full((40, 50, 3), 20, np.uint8), "png"),
    "bob/1.png": encode_image(np.full((40, 50, 3), 30, np.uint8), "png"),
}


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def opened(path: Path, *, max_members: int = 1000, max_bytes: int = 2**24, limits: ImageLimits | None = None):
    assert is_archive(str(path))
    return ArchiveInput(str(path), limits or ImageLimits(), max_members=max_members, max_bytes=max_bytes)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "zip"])
def test_every_kind_of_archive_gives_the_same_pictures_whatever_its_name(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "faces"
    path = write_zip(path, FILES) if mode == "zip" else write_tar(path, FILES, mode)
    source = pickle.loads(pickle.dumps(opened(path)))
    entries = source.list_entries().entries
    assert [(entry.identity, entry.source) for entry in entries] == [(n.partition("/")[0], n) for n in FILES]
    pictures = {result.entry.source: int(result.image[0, 0, 0]) for result in source.read(entries[::-1])}
    assert pictures == {"ann/1.png": 10, "ann/2.png": 20, "bob/1.png": 30}
    assert [path.name for path in tmp_path.iterdir()] == ["faces"], "nothing was unpacked"


def test_a_common_top_folder_is_not_an_identity(tmp_path: Path) -> None:
    wrapped = {f"./faces/{name}": data for name, data in FILES.items()} | {"./faces/README": b"hello"}
    entries = opened(write_tar(tmp_path / "a.tar", wrapped)).list_entries().entries
    assert [entry.identity for entry in entries] == ["ann", "ann", "bob", "README"]
    alone = {name: data for name, data in FILES.items() if name.startswith("ann")}
    entries = opened(write_zip(tmp_path / "b.zip", alone)).list_entries().entries
    assert [entry.identity for entry in entries] == ["ann", "ann"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_that_point_outside_are_dropped_by_name(tmp_path: Path, kind: str) -> None:
    files = {"../evil/1.png": FILES["ann/1.png"], "/etc/2.png": FILES["ann/1.png"]} | FILES
    path = write_tar(tmp_path / "x", files) if kind == "tar" else write_zip(tmp_path / "x", files)
    listing = opened(path).list_entries()
    assert {drop.source: drop.reason for drop in listing.dropped} == dict.fromkeys(
        ["../evil/1.png", "/etc/2.png"], "unsafe_name"
    )
    assert len(listing.entries) == 3


def test_links_and_devices_in_a_tar_are_dropped(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", FILES)
    with tarfile.open(path, "a") as archive:
        for name, kind in (("ann/link.png", tarfile.SYMTYPE), ("ann/null.png", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    dropped = opened(path).list_entries().dropped
    assert {drop.source: drop.reason for drop in dropped} == dict.fromkeys(
        ["ann/link.png", "ann/null.png"], "unreadable"
    )


def test_too_many_members_or_bytes_refuse_the_archive(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "bomb.zip", {f"a/{n}.png": b"\0" * 100_000 for n in range(20)})
    assert path.stat().st_size < 20_000
    with pytest.raises(InputMissing, match="max_archive_bytes"):
        opened(path, max_bytes=1_000_000).list_entries()
    with pytest.raises(InputMissing, match="max_archive_members"):
        opened(path, max_members=10).list_entries()


def test_a_large_member_is_dropped_without_unpacking_it(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", FILES | {"ann/huge.png": FILES["ann/1.png"] + b"\0" * 10_000_000})
    source = opened(path, limits=ImageLimits(max_bytes=100_000))
    reasons = [r.reason for r in source.read(source.list_entries().entries) if isinstance(r, DroppedPicture)]
    assert reasons == ["too_large"]


def test_a_truncated_tar_is_refused_in_one_line(tmp_path: Path) -> None:
    for mode in ("w", "w:gz"):
        path = write_tar(tmp_path / f"x{mode[2:]}", {f"a/{n}.png": bytes(3000) for n in range(30)}, mode)
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(InputMissing, match="the archive is damaged"):
            opened(path).list_entries()


def test_a_damaged_member_of_a_zip_is_dropped_alone(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", FILES)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("ann/2.png")
    start = info.header_offset + 30 + len(info.filename)
    data[start + 10 : start + 20] = bytes(10)
    path.write_bytes(data)
    source = opened(path)
    results = list(source.read(source.list_entries().entries))
    assert [type(result) for result in results] == [DecodedPicture, DroppedPicture, DecodedPicture]
    assert results[1].reason == "unreadable"


def test_a_member_with_an_unknown_compression_is_dropped_alone(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", FILES)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start, directory = archive.getinfo("ann/2.png").header_offset, archive.start_dir
    # The method is in the header of the member and in the directory at the end, there 36 bytes before the name.
    for place in (start + 8, data.index(b"ann/2.png", directory) - 36):
        data[place : place + 2] = (99).to_bytes(2, "little")
    path.write_bytes(data)
    source = opened(path)
    results = list(source.read(source.list_entries().entries))
    assert [type(result) for result in results] == [DecodedPicture, DroppedPicture, DecodedPicture]
    assert results[1].reason == "unreadable"


def test_a_tar_that_ends_in_a_zip_is_still_a_tar(tmp_path: Path) -> None:
    inner = write_zip(tmp_path / "inner.zip", {"x/1.png": b"1"}).read_bytes()
    path = write_tar(tmp_path / "x.tar", FILES | {"ann/inner.zip": inner})
    assert [entry.source for entry in opened(path).list_entries().entries] == [*FILES, "ann/inner.zip"]


def test_other_files_are_no_archives(tmp_path: Path) -> None:
    for name, data in {"empty": b"", "text": b"hello" * 300, "picture": FILES["ann/1.png"]}.items():
        (tmp_path / name).write_bytes(data)
        assert not is_archive(str(tmp_path / name))
