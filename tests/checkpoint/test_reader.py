"""What the files of tensors hold, and what is never loaded from them; all in one process."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from fusionray.checkpoint import data_files
from fusionray.checkpoint.index import read_table
from fusionray.checkpoint.info import INFO_NAME, read_info
from fusionray.checkpoint.reader import list_tensors, load_into, load_tensors, read_parts
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.errors import CheckpointMissing
from fusionray.storage import filesystem as storage
from fusionray.storage import retries
from tests.checkpoint.states import (
    assert_equal,
    blank_state,
    describe,
    file_of,
    plain_state,
    rewrite,
    save_plain,
    vouch,
)


def rewrite_table(folder: str, name: str, **changes: Any) -> None:
    """Change a tensor's entry or its only part in the table, and the description to match."""
    path = file_of(folder, ".tensors.json")
    table = json.loads(path.read_text())
    entry = table["tensors"][name]
    entry.update({key: value for key, value in changes.items() if key in entry})
    entry["parts"][0].update({key: value for key, value in changes.items() if key not in entry})
    vouch(folder, path, json.dumps(table).encode())


def test_tensors_of_all_types_and_layouts_read_back_bit_by_bit(tmp_path: Path) -> None:
    assert_equal(load_tensors(save_plain(tmp_path, 7)), plain_state(7))


def test_shapes_and_types_are_listed_from_the_table_alone(tmp_path: Path) -> None:
    folder = save_plain(tmp_path)
    file_of(folder, ".bin").unlink()
    assert list_tensors(folder) == {name: (value.shape, value.dtype) for name, value in plain_state(1).items()}


def test_a_part_of_the_state_is_loaded_by_its_prefix_without_it(tmp_path: Path) -> None:
    found = load_tensors(save_plain(tmp_path), "averages.generator.")
    assert_equal(found, {"weight": plain_state(1)["averages.generator.weight"]})
    with pytest.raises(CheckpointMissing, match=r"holds no tensor named averages\.nobody\."):
        load_tensors(save_plain(tmp_path), "averages.nobody.")


def test_loading_in_place_keeps_layouts_and_writes_through_views(tmp_path: Path) -> None:
    wanted = plain_state(3)
    targets = blank_state()
    owner = torch.nn.Parameter(torch.zeros_like(targets["networks.generator.weight"]))
    targets["networks.generator.weight"] = owner
    assert load_into(save_plain(tmp_path, 3), targets).images_seen == 3
    assert_equal(targets, wanted)
    assert owner.is_contiguous(memory_format=torch.channels_last)


def drop(state: dict[str, Tensor]) -> None:
    del state["step"]


def add(state: dict[str, Tensor]) -> None:
    state["more"] = torch.zeros(2)


def reshape(state: dict[str, Tensor]) -> None:
    state["counts"] = state["counts"].reshape(2, 3)


def retype(state: dict[str, Tensor]) -> None:
    state["counts"] = state["counts"].float()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, "step is in it and not wanted here"),
        (add, "more is not in it"),
        (reshape, r"counts is int64 \[6\] in it and int64 \[2, 3\] here"),
        (retype, r"counts is int64 \[6\] in it and float32 \[6\] here"),
    ],
)
def test_a_checkpoint_of_other_tensors_is_refused_naming_the_first(tmp_path: Path, change: Any, message: str) -> None:
    targets = blank_state()
    change(targets)
    with pytest.raises(CheckpointMissing, match=rf"does not fit these networks \({message}\)"):
        load_into(save_plain(tmp_path), targets)


def test_optional_tensors_may_lack_on_either_side(tmp_path: Path) -> None:
    targets = blank_state()
    del targets["step"]
    targets["more"] = torch.full((2,), 5.0)
    load_into(save_plain(tmp_path), targets, optional=("step", "mo"))
    assert torch.equal(targets["more"], torch.full((2,), 5.0))


def test_only_numbers_are_saved(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path), keep=1)
    state: Any = {"x": {"y": 1}}
    with pytest.raises(TypeError, match="x: a checkpoint holds tensors of"):
        writer.begin(state, describe(1))
    writer.close()


class Attack:
    """What a pickle can ask the reader to do."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize("kind", [".bin", ".tensors.json", INFO_NAME])
def test_a_pickle_in_any_file_does_not_run(tmp_path: Path, kind: str) -> None:
    folder, victim = save_plain(tmp_path / "run"), tmp_path / "victim"
    attack = pickle.dumps(Attack(victim))
    path = file_of(folder, kind)
    if kind == INFO_NAME:
        path.write_bytes(attack)
    else:
        # The attacker writes the description too, so lengths and hashes hold.
        vouch(folder, path, attack.ljust(path.stat().st_size, b"\0"))
    with pytest.raises(CheckpointMissing) as caught:
        load_tensors(folder)
    assert "\n" not in str(caught.value)
    assert not victim.exists()
    pickle.loads(attack)  # the attack itself works
    assert victim.exists()


@pytest.mark.parametrize("kind", [".bin", ".tensors.json"])
def test_a_changed_byte_is_refused(tmp_path: Path, kind: str) -> None:
    folder = save_plain(tmp_path)
    path = file_of(folder, kind)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for load in (load_tensors, lambda place: load_into(place, blank_state())):
        with pytest.raises(CheckpointMissing, match=r"SHA-256 differs\), so the checkpoint is damaged; delete"):
            load(folder)


def test_a_changed_byte_that_is_not_asked_for_does_not_matter(tmp_path: Path) -> None:
    folder = save_plain(tmp_path)
    path = file_of(folder, ".bin")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of `step`, the last tensor
    path.write_bytes(data)
    assert_equal(load_tensors(folder, "counts"), {"": plain_state(1)["counts"]})


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../secret.bin"},
        {"file": "other.bin"},
        {"start": -1},
        {"start": 1 << 40},
        {"offsets": [1]},
        {"offsets": [-1]},
        {"sizes": [5]},
        {"sizes": [6, 1]},
        {"shape": [1 << 40]},
        {"shape": [-6]},
        {"dtype": "object"},
        {"parts": [(0, 0)]},
        {"parts": [(0, 3), (2, 3)]},
        {"parts": [(0, 2), (4, 2)]},
    ],
)
def test_a_table_that_leads_astray_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = save_plain(tmp_path)
    (tmp_path / "secret.bin").write_bytes(b"x" * 4096)
    if "parts" in changes:
        rewrite_table(folder, "counts", parts=[part_of(folder, *numbers) for numbers in changes["parts"]])
    else:
        rewrite_table(folder, "counts", **changes)
    with pytest.raises(CheckpointMissing, match="the entry of counts is wrong"):
        load_tensors(folder)


def part_of(folder: str, offset: int, size: int) -> dict[str, Any]:
    name = file_of(folder, ".bin").name
    return {"offsets": [offset], "sizes": [size], "file": name, "start": 0, "sha256": ""}


@pytest.mark.parametrize("name", ["../table.json", "..", "", "a\\b"])
def test_a_description_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = save_plain(tmp_path)
    rewrite(folder, table=name)
    with pytest.raises(CheckpointMissing, match="names a file outside the folder"):
        load_tensors(folder)


class Flaky:
    """A file of an object store: each second read fails, and all are counted."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "rb")  # noqa: SIM115 - closed by its context
        self.reads = 0

    def __enter__(self) -> Flaky:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def seek(self, place: int) -> None:
        self.file.seek(place)

    def readinto(self, data: Any) -> int:
        self.reads += 1
        if self.reads % 2:
            raise OSError("AWS Error INTERNAL_FAILURE during GetObject operation")
        return self.file.readinto(data)


def test_an_object_store_is_asked_once_for_neighbours_and_again_if_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_plain(tmp_path, 7)
    opened: list[Flaky] = []

    class Store:
        def open_input_file(self, path: str) -> Flaky:
            opened.append(Flaky(path))
            return opened[-1]

    open_store = SimpleNamespace(open_filesystem=lambda location: (Store(), location), join=storage.join)
    monkeypatch.setattr(data_files, "storage", open_store)
    monkeypatch.setattr(retries, "PAUSE_SECONDS", 0.0)
    state = plain_state(7)
    found = {name: torch.empty_like(value) for name, value in state.items()}
    table = read_table(folder, read_info(folder))
    read_parts(folder, table, found)
    assert_equal(found, state)
    (file,) = opened
    assert len(state) > 5
    assert file.reads == 2
    # Pieces of a few bytes give the same.
    monkeypatch.setattr(data_files, "READ_BYTES", 64)
    again = {name: torch.empty_like(value) for name, value in state.items()}
    read_parts(folder, table, again)
    assert_equal(again, state)
    assert opened[1].reads > 6


def test_an_object_store_that_refuses_for_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Store:
        def open_input_file(self, path: str) -> Flaky:
            file = Flaky(path)
            file.readinto = Mock(side_effect=OSError("slow down"))  # type: ignore[method-assign]
            return file

    folder = save_plain(tmp_path, 7)
    open_store = SimpleNamespace(open_filesystem=lambda location: (Store(), location), join=storage.join)
    monkeypatch.setattr(data_files, "storage", open_store)
    monkeypatch.setattr(retries, "PAUSE_SECONDS", 0.0)
    with pytest.raises(CheckpointMissing, match=r"cannot be read \(slow down\)"):
        read_parts(folder, read_table(folder, read_info(folder)), plain_state(7))
