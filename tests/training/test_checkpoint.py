from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fusionray.errors import CheckpointMissing
from fusionray.training.checkpoint import (
    INFO_NAME,
    STATE_NAME,
    CheckpointInfo,
    checkpoint_name,
    find_checkpoint,
    hash_file,
    load_checkpoint,
    read_info,
    save_checkpoint,
)


def describe(**changes: Any) -> CheckpointInfo:
    settings = {
        "config": {"a": {"b": 1}},
        "num_people": 3,
        "data_digest": "d",
        "images_seen": 64,
        "seconds": 1.5,
        "metrics": {"loss": 0.5},
    }
    return CheckpointInfo(**{**settings, **changes})


def save(folder: Path, number: int = 1) -> Path:
    path = folder / checkpoint_name(number)
    save_checkpoint(
        path, {"x": torch.full((3,), float(number)), "n": number, "deep": {"y": [1, 2.5, "s", None]}}, describe()
    )
    return path


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path: Path) -> None:
    info, state = load_checkpoint(save(tmp_path, 7))
    assert torch.equal(state["x"], torch.full((3,), 7.0))
    assert state["deep"] == {"y": [1, 2.5, "s", None]}
    assert (info.images_seen, info.config, info.metrics) == (64, {"a": {"b": 1}}, {"loss": 0.5})
    assert info.state_bytes > 0


def test_the_loss_of_a_skipped_step_does_not_make_a_checkpoint_unreadable(tmp_path: Path) -> None:
    metrics = {"loss_good": 0.5, "loss_bad": math.nan, "loss_huge": math.inf}
    save_checkpoint(tmp_path, {}, describe(metrics=metrics))
    assert read_info(tmp_path).metrics == {"loss_good": 0.5}


class Attack:
    """What a pickle can ask the reader to do."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


def test_a_pickle_with_code_in_it_is_refused_and_does_not_run(tmp_path: Path) -> None:
    folder, victim = tmp_path / "checkpoint", tmp_path / "victim"
    save_checkpoint(folder, {"harmless": 1}, describe())
    torch.save({"networks": Attack(victim)}, folder / STATE_NAME)
    # The attacker writes the description too, so the hash holds.
    described = describe(state_bytes=(folder / STATE_NAME).stat().st_size, state_sha256=hash_file(folder / STATE_NAME))
    (folder / INFO_NAME).write_text(described.model_dump_json())
    with pytest.raises(CheckpointMissing, match=r"state\.pt: holds something other than tensors") as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert not victim.exists()
    torch.load(folder / STATE_NAME, weights_only=False)  # the attack itself works
    assert victim.exists()


def test_a_state_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    folder = tmp_path / checkpoint_name(1)
    (folder / STATE_NAME).write_bytes(b"not a state")
    described = describe(state_bytes=11, state_sha256=hash_file(folder / STATE_NAME))
    (folder / INFO_NAME).write_text(described.model_dump_json())
    with pytest.raises(CheckpointMissing, match=r"state\.pt"):
        load_checkpoint(folder)


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_state_is_refused(tmp_path: Path, damage: str) -> None:
    path = save(tmp_path) / STATE_NAME
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(data[:-1])
    elif damage == "changed":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.raises(CheckpointMissing, match=r"state\.pt: is missing or damaged"):
        load_checkpoint(path.parent)


@pytest.mark.parametrize("change", [{"colour": 1}, {"images_seen": "many"}, {"format_version": 2}])
def test_a_foreign_description_is_refused_naming_the_key(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = save(tmp_path)
    tree = {**json.loads((folder / INFO_NAME).read_text()), **change}
    (folder / INFO_NAME).write_text(json.dumps(tree))
    with pytest.raises(CheckpointMissing, match=rf"not a checkpoint of this format \({next(iter(change))}"):
        load_checkpoint(folder)


def test_a_folder_without_a_description_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match=r"holds no checkpoint \(info\.json is missing\)"):
        load_checkpoint(tmp_path)


def test_the_newest_checkpoint_of_a_run_is_found(tmp_path: Path) -> None:
    for number in (999, 12_000, 5_000):
        save(tmp_path, number)
    assert find_checkpoint(str(tmp_path)) == tmp_path / checkpoint_name(12_000)
    assert find_checkpoint(tmp_path.as_uri()) == tmp_path / checkpoint_name(12_000)
    assert find_checkpoint(str(tmp_path / checkpoint_name(999))) == tmp_path / checkpoint_name(999)


@pytest.mark.parametrize("damage", ["state truncated", "state missing", "info truncated", "info missing"])
def test_a_half_copied_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    whole, newest = save(tmp_path, 1), save(tmp_path, 2)
    which, how = damage.split()
    path = newest / (STATE_NAME if which == "state" else INFO_NAME)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.unlink()
    assert find_checkpoint(str(tmp_path)) == whole


def test_a_run_without_a_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / STATE_NAME).unlink()
    with pytest.raises(CheckpointMissing, match="holds no whole checkpoint"):
        find_checkpoint(str(tmp_path))
    shutil.rmtree(folder)
    with pytest.raises(CheckpointMissing, match="holds no whole checkpoint"):
        find_checkpoint(str(tmp_path))


def test_a_missing_place_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match=r"nowhere: no such checkpoint or run folder"):
        find_checkpoint(str(tmp_path / "nowhere"))


def test_names_of_checkpoints_sort_by_progress() -> None:
    counts = [5, 40, 1000, 12_000_000]
    assert sorted(map(checkpoint_name, counts[::-1])) == list(map(checkpoint_name, counts))
