"""How checkpoints are described and found, and which are refused or passed over; all in one process."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionray.checkpoint.info import (
    INFO_NAME,
    CheckpointInfo,
    checkpoint_name,
    copy_checkpoint,
    find_checkpoint,
    newest_checkpoint,
    read_info,
)
from fusionray.checkpoint.reader import agree_newest, load_tensors
from fusionray.errors import CheckpointMissing
from fusionray.storage import filesystem as storage
from tests.checkpoint.states import (
    assert_equal,
    describe,
    file_of,
    plain_state,
    rewrite,
    save_plain,
)


def test_the_description_reads_back_as_it_was_written(tmp_path: Path) -> None:
    counters, position = {"num_steps": 3}, {"epoch": 1, "files": ["a", [2, None]]}
    info = read_info(save_plain(tmp_path, 64, counters=counters, position=position))
    assert (info.images_seen, info.config, info.metrics) == (64, {"a": {"b": 1}}, {"loss": 0.5})
    assert (info.counters, info.position, info.num_ranks, info.format_version) == (counters, position, 1, 2)


def test_what_earlier_versions_wrote_as_fields_is_read_as_metadata(tmp_path: Path) -> None:
    folder = save_plain(tmp_path)
    path = Path(folder, INFO_NAME)
    tree = json.loads(path.read_text())
    del tree["metadata"]
    path.write_text(json.dumps({**tree, "identity_encoder": {"channels": [8]}, "attribute_reader": None}))
    assert read_info(folder).metadata == {"identity_encoder": {"channels": [8]}}


def test_the_loss_of_a_skipped_step_does_not_make_a_checkpoint_unreadable(tmp_path: Path) -> None:
    metrics = {"loss_good": 0.5, "loss_bad": math.nan, "loss_huge": math.inf}
    assert read_info(save_plain(tmp_path, metrics=metrics)).metrics == {"loss_good": 0.5}


@pytest.mark.parametrize("kind", [".bin", ".tensors.json", INFO_NAME])
@pytest.mark.parametrize("left", ["nothing", "a byte", "half", "all but a byte", "missing"])
def test_a_file_cut_anywhere_is_refused_and_the_checkpoint_before_is_used(tmp_path: Path, kind: str, left: str) -> None:
    whole, newest = save_plain(tmp_path, 1), save_plain(tmp_path, 2)
    path = file_of(newest, kind)
    data = path.read_bytes()
    if left == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: {"nothing": 0, "a byte": 1, "half": len(data) // 2, "all but a byte": -1}[left]])
    with pytest.raises(CheckpointMissing) as caught:
        load_tensors(newest)
    assert newest in str(caught.value)
    assert "\n" not in str(caught.value)
    if (kind, left) == (INFO_NAME, "missing"):
        # What a crash leaves behind is no news.
        assert find_checkpoint(str(tmp_path)) == whole
    else:
        with pytest.warns(RuntimeWarning, match="passed over for"):
            assert find_checkpoint(str(tmp_path)) == whole


def test_a_copied_checkpoint_is_the_newest_of_the_other_run_and_holds_the_same(tmp_path: Path) -> None:
    giver = save_plain(tmp_path / "giver", 64)
    copy = copy_checkpoint(giver, str(tmp_path / "taker"))
    assert newest_checkpoint(str(tmp_path / "taker")) == copy
    assert read_info(copy) == read_info(giver)
    assert_equal(load_tensors(copy), load_tensors(giver))


def test_a_damaged_checkpoint_is_not_copied(tmp_path: Path) -> None:
    giver = save_plain(tmp_path / "giver", 64)
    file_of(giver, ".bin").write_bytes(b"short")
    with pytest.raises(CheckpointMissing, match="is damaged"):
        copy_checkpoint(giver, str(tmp_path / "taker"))
    assert newest_checkpoint(str(tmp_path / "taker")) is None


@pytest.mark.parametrize("change", [{"colour": 1}, {"images_seen": "many"}, {"files": {"x": "y"}}])
def test_a_foreign_description_is_refused_naming_the_key(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = save_plain(tmp_path)
    rewrite(folder, **change)
    with pytest.raises(CheckpointMissing, match=rf"not a checkpoint of this format \({next(iter(change))}"):
        load_tensors(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format_version": 1, "state_bytes": 3}', r"older version of fusionray \(format 1.*train again.*or export"),
        ('{"format_version": 3}', r"newer version of fusionray \(format 3.*update"),
        ('{"format_version": "2"}', "not a checkpoint of fusionray"),
        ('["format_version"]', "not a checkpoint of fusionray"),
        ("{", "is damaged"),
        ("\x00\xff", "is damaged"),
    ],
)
def test_other_formats_are_refused_saying_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / checkpoint_name(5)
    folder.mkdir()
    (folder / INFO_NAME).write_text(text, encoding="latin-1")
    (folder / "state.pt").write_bytes(b"abc")
    for find in (load_tensors, find_checkpoint_of_run, agree_newest):
        with pytest.raises(CheckpointMissing, match=message):
            find(str(folder if find is load_tensors else tmp_path))


def find_checkpoint_of_run(run: str) -> str:
    return find_checkpoint(run)


def test_checkpoints_that_cannot_be_understood_are_not_deleted_by_a_save(tmp_path: Path) -> None:
    folder = tmp_path / checkpoint_name(5)
    folder.mkdir()
    (folder / INFO_NAME).write_text('{"format_version": 1}')
    for number in (6, 7, 8):
        save_plain(tmp_path, number, keep=1)
    assert sorted(os.listdir(tmp_path)) == [checkpoint_name(5), checkpoint_name(8)]


def test_a_folder_without_a_description_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match=r"holds no checkpoint \(info\.json is missing\)"):
        read_info(str(tmp_path))


def test_the_newest_checkpoint_of_a_run_is_found(tmp_path: Path) -> None:
    for number in (999, 12_000, 5_000):
        save_plain(tmp_path, number)
    newest = str(tmp_path / checkpoint_name(12_000))
    assert find_checkpoint(str(tmp_path)) == newest
    assert find_checkpoint(newest + "/") == newest
    assert find_checkpoint(tmp_path.as_uri()) == f"{tmp_path.as_uri()}/{checkpoint_name(12_000)}"
    assert_equal(load_tensors(find_checkpoint(tmp_path.as_uri())), plain_state(12_000))
    assert find_checkpoint(str(tmp_path / checkpoint_name(999))) == str(tmp_path / checkpoint_name(999))


def test_a_run_before_its_first_checkpoint_has_none(tmp_path: Path) -> None:
    (tmp_path / checkpoint_name(5)).mkdir()
    for run in (tmp_path, tmp_path / "nowhere"):
        assert newest_checkpoint(str(run)) is None
        assert agree_newest(str(run)) is None
    with pytest.raises(CheckpointMissing, match="holds no whole checkpoint; let the run reach its first one"):
        find_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointMissing, match=r"nowhere: no such checkpoint or run folder"):
        find_checkpoint(str(tmp_path / "nowhere"))


def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_anew(tmp_path: Path) -> None:
    file_of(save_plain(tmp_path), ".bin").unlink()
    for find in (newest_checkpoint, agree_newest, find_checkpoint):
        with pytest.raises(CheckpointMissing, match=r"holds no whole checkpoint; the newest: .*is missing"):
            find(str(tmp_path))


@pytest.fixture
def object_store() -> Iterator[str]:
    """A store that knows no local paths, reached by its URI as s3:// is."""
    location = "fsspec+memory://fusionray-test/runs/a"
    yield location
    storage.delete("fsspec+memory://fusionray-test")


def test_object_stores_work_by_the_same_code(object_store: str) -> None:
    for number in (1, 2, 3):
        save_plain(object_store, number, keep=2)
    assert sorted(storage.list_folder(object_store)) == [checkpoint_name(2), checkpoint_name(3)]
    newest = find_checkpoint(object_store)
    assert newest == f"{object_store}/{checkpoint_name(3)}"
    assert_equal(load_tensors(newest), plain_state(3))
    storage.delete(f"{newest}/{read_info(newest).table}")
    with pytest.warns(RuntimeWarning, match="is missing, so the checkpoint is damaged"):
        assert find_checkpoint(object_store) == f"{object_store}/{checkpoint_name(2)}"


def test_a_copied_checkpoint_is_whole_wherever_it_lies(tmp_path: Path) -> None:
    shutil.copytree(save_plain(tmp_path / "run", 4), tmp_path / "elsewhere")
    assert_equal(load_tensors(find_checkpoint(str(tmp_path / "elsewhere"))), plain_state(4))


def test_names_of_checkpoints_sort_by_progress() -> None:
    counts = [5, 40, 1000, 12_000_000]
    assert sorted(map(checkpoint_name, counts[::-1])) == list(map(checkpoint_name, counts))


def test_an_info_says_which_code_wrote_it() -> None:
    assert CheckpointInfo.model_fields["code_version"].default == describe(1).code_version
