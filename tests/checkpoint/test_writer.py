"""Saving beside training: what is written, kept and deleted, and what stays when the writing fails or is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fusionray.checkpoint.info import checkpoint_name, find_checkpoint, newest_checkpoint, take_fencing_token
from fusionray.checkpoint.reader import load_tensors
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.errors import CheckpointFailed
from tests.checkpoint.children import (
    NUM_KILLS,
    fail_to_write,
    kill_at_every_step_of_storage,
    kill_at_random_moments,
    run_template,
)
from tests.checkpoint.ranks import lose_a_rank_in_a_save, save_and_load_in_groups, whole_tensors
from tests.checkpoint.states import assert_equal, describe, plain_state

Children = tuple[Path, dict[str, Any]]


def test_a_save_goes_on_beside_training_and_holds_the_values_of_its_beginning(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path), keep=1)
    state = {"x": torch.ones(8_000_000), "step": torch.tensor(1)}
    writer.begin(state, describe(1))
    state["x"].zero_()
    state["step"] += 1
    assert not writer.finished()
    assert newest_checkpoint(str(tmp_path)) is None
    assert writer.wait() == str(tmp_path / checkpoint_name(1))
    assert writer.finished()
    assert writer.wait() is None
    saved = load_tensors(find_checkpoint(str(tmp_path)))
    assert (float(saved["x"].min()), int(saved["step"])) == (1.0, 1)
    writer.close()


def test_a_save_waits_for_the_one_before_it_and_uses_its_memory_again(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path), keep=9)
    state = {"x": torch.zeros(1_000_000)}
    writer.begin(state, describe(0))
    staging = writer.staging
    for number in range(1, 4):
        state["x"].fill_(number)
        writer.begin(state, describe(number))
    assert writer.staging is staging
    writer.close()
    for number in range(4):
        found = load_tensors(str(tmp_path / checkpoint_name(number)))["x"]
        assert torch.equal(found, torch.full((1_000_000,), float(number)))


def test_after_another_start_of_the_run_the_former_one_publishes_nothing(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path), keep=9, fencing_token=take_fencing_token(str(tmp_path)))
    writer.begin(plain_state(1), describe(1))
    assert writer.wait() == str(tmp_path / checkpoint_name(1))
    take_fencing_token(str(tmp_path))
    writer.begin(plain_state(2), describe(2))
    with pytest.raises(CheckpointFailed, match="not saved, since the run was started again"):
        writer.close()
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / checkpoint_name(1))


def test_a_part_that_rank_0_does_not_see_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CheckpointWriter(str(tmp_path), keep=9)
    writer.begin(plain_state(1), describe(1))
    assert writer.wait() == str(tmp_path / checkpoint_name(1))
    assert writer.staging is not None
    write = writer.staging.write

    def write_elsewhere(location: str) -> Any:
        # As on the disk of another node.
        length, entries = write(location)
        Path(location).unlink()
        return length, entries

    monkeypatch.setattr(writer.staging, "write", write_elsewhere)
    writer.begin(plain_state(2), describe(2))
    with pytest.raises(CheckpointFailed, match=r"missing for rank 0; run\.output must lie on storage that all"):
        writer.close()
    assert newest_checkpoint(str(tmp_path)) == str(tmp_path / checkpoint_name(1))


def test_a_state_that_grew_is_saved_whole(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path), keep=9)
    state: dict[str, Tensor] = {"x": torch.ones(3)}
    for number in range(3):
        writer.begin(state, describe(number))
        state[f"more{number}"] = torch.full((2, number), 1.0)
        state["x"] = torch.ones(4)
    writer.close()
    found = load_tensors(find_checkpoint(str(tmp_path)))
    assert {name: list(value.shape) for name, value in found.items()} == {"x": [4], "more0": [2, 0], "more1": [2, 1]}


def kept_of(folder: Path, scores: list[float | None], **settings: Any) -> list[int]:
    """Save a checkpoint a score and say which of them are left."""
    writer = CheckpointWriter(str(folder), **settings)
    for number, score in enumerate(scores):
        writer.begin(plain_state(number), describe(number, metrics={} if score is None else {"score": score}))
    writer.close()
    return [int(name.removeprefix("checkpoint-")) for name in sorted(os.listdir(folder))]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    assert kept_of(tmp_path, [0.1, 0.9, 0.2, 0.3, 0.4], keep=2) == [3, 4]


@pytest.mark.parametrize(
    ("scores", "best_mode", "kept"),
    [
        ([0.1, 0.9, 0.2, 0.3], "highest", [1, 3]),
        ([0.1, 0.9, 0.2, 0.3], "lowest", [0, 3]),
        ([0.9, None, None, None], "highest", [0, 3]),
        ([None, None, None, None], "highest", [3]),
        ([0.9, 0.9, 0.2, float("nan")], "highest", [0, 3]),
    ],
)
def test_the_best_mode_kept_beside_the_newest(tmp_path: Path, scores: Any, best_mode: Any, kept: list[int]) -> None:
    assert kept_of(tmp_path, scores, keep=1, best_metric="score", best_mode=best_mode) == kept


def test_the_best_of_an_earlier_process_is_kept(tmp_path: Path) -> None:
    kept_of(tmp_path, [0.1, 0.9, 0.2], keep=1, best_metric="score")
    writer = CheckpointWriter(str(tmp_path), keep=1, best_metric="score")
    writer.begin(plain_state(7), describe(7, metrics={"score": 0.3}))
    writer.close()
    assert sorted(os.listdir(tmp_path)) == [checkpoint_name(1), checkpoint_name(7)]


def test_saving_at_the_same_images_again_replaces_the_checkpoint(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = CheckpointWriter(str(tmp_path), keep=3)
        writer.begin(plain_state(number), describe(5))
        writer.close()
    assert torch.equal(load_tensors(find_checkpoint(str(tmp_path)))["step"], torch.tensor(2.0))
    assert len(os.listdir(tmp_path / checkpoint_name(5))) == 3


def test_damaged_ones_do_not_count_as_newest_and_leftovers_go(tmp_path: Path) -> None:
    kept_of(tmp_path, [None, None, None], keep=9)
    (data,) = (tmp_path / checkpoint_name(2)).glob("*.bin")
    data.write_bytes(b"")
    (tmp_path / checkpoint_name(1) / "a.bin.0123.part").write_bytes(b"left")
    (tmp_path / checkpoint_name(9)).mkdir()
    (tmp_path / checkpoint_name(9) / "a.bin").write_bytes(b"left")
    (tmp_path / "config.json").write_text("{}")
    writer = CheckpointWriter(str(tmp_path), keep=2)
    writer.begin(plain_state(3), describe(3))
    writer.close()
    assert sorted(os.listdir(tmp_path)) == [checkpoint_name(1), checkpoint_name(3), "config.json"]
    assert not list((tmp_path / checkpoint_name(1)).glob("*.part"))


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux alone")
def test_training_comes_before_writing(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path), keep=1)
    niceness = writer.thread.submit(lambda: os.getpriority(os.PRIO_PROCESS, __import__("threading").get_native_id()))
    assert niceness.result() > os.getpriority(os.PRIO_PROCESS, 0)
    writer.close()


def run_children(folder: Path, *tasks: Callable[[Path], Any]) -> Children:
    """What each task of checkpoint_children returned, and the folder that holds its files."""
    return folder, run_template(list(tasks), folder)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Children:
    return run_children(tmp_path_factory.mktemp("killed"), kill_at_random_moments, kill_at_every_step_of_storage)


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Children:
    return run_children(
        tmp_path_factory.mktemp("children"), fail_to_write, lose_a_rank_in_a_save, save_and_load_in_groups
    )


@pytest.mark.slow(seconds=35)
def test_a_saver_killed_at_any_moment_leaves_the_former_checkpoint(killed: Children) -> None:
    found = killed[1]["kill_at_random_moments"]
    assert len(found["seen"]) == NUM_KILLS
    for seen, promised in zip(found["seen"], found["promised"], strict=True):
        # What was being published when the kill came may be there already.
        assert seen in (promised, promised + 1)
    assert found["seen"] == sorted(found["seen"])
    assert len(set(found["seen"])) > 3, "some kills came after a save, others before it"
    # Two checkpoints, each a folder of data, table and description, beside this test's own result.
    assert len(found["left"]) == 2 * 4


@pytest.mark.slow(seconds=35)
def test_a_saver_killed_at_every_step_of_its_writing_leaves_a_whole_checkpoint(killed: Children) -> None:
    found = killed[1]["kill_at_every_step_of_storage"]
    seen = found["seen"]
    assert len(seen) > 30
    assert found["recovered"] > 3
    assert set(seen) == {2, 3}
    assert seen == sorted(seen)
    assert seen.count(3) > 5, "kills while older ones are deleted"


def test_a_full_disk_and_a_read_only_folder_are_said_and_leave_the_former_checkpoint(children: Children) -> None:
    found = children[1]["fail_to_write"]
    assert "could not be saved (rank 0: [Errno 27] File too large" in found["room"]["error"]
    assert "ermission denied" in found["permission"]["error"]
    for name in ("room", "permission"):
        assert "earlier checkpoints are intact" in found[name]["error"]
        assert "\n" not in found[name]["error"]
        assert not [path for path in found[name]["left"] if checkpoint_name(2) + "/" in path]
    assert found["after"] == 2
    assert len(found["left"]) == 2 * 4


@pytest.fixture
def groups(children: Children) -> Children:
    """The run folder that two ranks saved into, and what each rank of each group saw."""
    folder, results = children
    return folder / "save_and_load_in_groups" / "run", results["save_and_load_in_groups"]


@pytest.mark.parametrize("number", [1, 2])
def test_what_two_ranks_saved_loads_whole_in_one_process(groups: Children, number: int) -> None:
    run, _ = groups
    wanted = plain_state(number) | whole_tensors(number) | ({"late": torch.arange(3)} if number > 1 else {})
    assert_equal(load_tensors(str(run / checkpoint_name(number))), wanted)


@pytest.mark.parametrize("name", ["load2", "load3"])
def test_what_two_ranks_saved_loads_on_two_and_three(groups: Children, name: str) -> None:
    run, results = groups
    wanted = plain_state(2) | whole_tensors(2) | {"late": torch.arange(3)}
    found: dict[str, Tensor] = {}
    for rank in results[name]:
        assert rank["newest"] == str(run / checkpoint_name(2))
        for key, value in rank["loaded"].items():
            assert torch.equal(value, wanted[key]), key
        found |= rank["loaded"]
    assert_equal(found, wanted)


def test_ranks_share_the_writing_and_write_nothing_twice(groups: Children) -> None:
    run, _ = groups
    sizes = [path.stat().st_size for path in (run / checkpoint_name(1)).glob("*.bin")]
    wanted = plain_state(1) | whole_tensors(1)
    assert sum(sizes) == sum(value.numel() * value.itemsize for value in wanted.values())
    assert len(sizes) == 2
    assert min(sizes) > 0.3 * sum(sizes)


def test_all_ranks_refuse_what_one_of_them_cannot_use(groups: Children) -> None:
    for rank in groups[1]["load2"] + groups[1]["load3"]:
        assert "does not fit these networks (late is in it and not wanted here)" in rank["misfit"]
        assert "late is int64 [3] in it and int64 [2] here" in rank["wrong"]


def test_all_ranks_learn_that_one_of_them_could_not_write(groups: Children) -> None:
    run, results = groups
    for rank in results["save"]:
        assert rank["folders"] == [str(run / checkpoint_name(1)), str(run / checkpoint_name(2))]
        assert "could not be saved (rank 1: [Errno 27] File too large" in rank["fault"]
    assert not list((run / checkpoint_name(3)).iterdir())


def test_a_rank_that_dies_in_a_save_leaves_the_former_checkpoint_and_the_others_do_not_hang(children: Children) -> None:
    found = children[1]["lose_a_rank_in_a_save"]
    assert found["ends"] == [0, 9]
    assert found["said"], "rank 0 is told"
    assert found["newest"] == 1
