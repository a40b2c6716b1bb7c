"""A person is in one split and, if possible, in one shard; new people do not move others to another split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.output import compute_fingerprint
from fusionray.data.prepare.picture_entries import PictureEntries, PictureEntry
from fusionray.data.prepare.plan import assign_splits, plan_shards
from fusionray.data.shards import SPLITS

SEEDS = range(40)


def pictures(people: dict[str, int]) -> PictureEntries:
    return PictureEntries(
        PictureEntry(name, f"{name}/{k}", str(k)) for name, count in people.items() for k in range(count)
    )


def people(count: int, letter: str = "p") -> list[str]:
    return [f"{letter}{number}" for number in range(count)]


def assign(names: list[str], **changes: Any) -> dict[str, set[str]]:
    """Assign splits with the defaults of prepare; returns the people of each."""
    settings = {"seed": 0, "validation_fraction": 0.1, "test_fraction": 0.1, **changes}
    splits = assign_splits(names, **settings)
    return {split: {names[k] for k in np.flatnonzero(splits == number)} for number, split in enumerate(SPLITS)}


def test_no_person_is_divided_and_none_is_in_two_splits() -> None:
    entries = pictures({f"p{n}": 1 + n % 7 for n in range(100)})
    planned_shards = plan_shards(entries, seed=1, validation_fraction=0.2, test_fraction=0.2, rows_per_shard=20)
    assert sorted(entry for planned in planned_shards for entry in entries.take(planned.rows)) == sorted(entries)
    homes: dict[str, set[str]] = {}
    for planned in planned_shards:
        assert 0 < len(planned.rows) <= 20
        assert planned.split in planned.file
        for entry in entries.take(planned.rows):
            homes.setdefault(entry.identity, set()).add(planned.file)
    assert all(len(files) == 1 for files in homes.values())
    assert len({planned.file for planned in planned_shards}) == len(planned_shards)
    assert {planned.split for planned in planned_shards} == set(SPLITS)


def test_a_person_with_more_pictures_than_a_shard_fills_several() -> None:
    entries = pictures({"a": 3, "huge": 25, "b": 3})
    planned_shards = plan_shards(entries, seed=0, validation_fraction=0, test_fraction=0, rows_per_shard=10)
    assert sorted(len(planned.rows) for planned in planned_shards) == [5, 6, 10, 10]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_new_people_move_nobody_to_another_split(split: str) -> None:
    before = people(200)
    after = [*before, *people(150, "q")]
    held_out = assign(before, seed=7)[split]
    assert 8 <= len(held_out) <= 35
    assert assign(after, seed=7)[split] & set(before) == held_out
    assert assign(before, seed=8)[split] != held_out


def test_the_fraction_of_one_split_does_not_change_the_people_of_the_other() -> None:
    names = people(200)
    usual = assign(names)
    assert assign(names, test_fraction=0.0)["validation"] == usual["validation"]
    assert assign(names, test_fraction=0.5)["validation"] == usual["validation"]
    assert assign(names, validation_fraction=0.0)["test"] == usual["test"]
    assert usual["test"] < assign(names, test_fraction=0.3)["test"]


def test_the_validation_people_are_those_of_the_version_without_a_test_split() -> None:
    # Recorded with that version: its shards and models stay comparable.
    assert assign(people(24), seed=3)["validation"] == {"p12", "p13", "p14", "p19", "p22"}


def test_few_people_still_give_training_and_validation() -> None:
    for count in (2, 3, 5):
        for fraction in (0.01, 0.99):
            found = assign(people(count), validation_fraction=fraction, test_fraction=0.005)
            assert 0 < len(found["validation"]) < count
            assert not found["test"]
    assert assign(["only"], validation_fraction=0.99, test_fraction=0.0)["train"] == {"only"}
    assert assign(["a", "b"], validation_fraction=0.0, test_fraction=0.0)["train"] == {"a", "b"}


@pytest.mark.parametrize(("count", "fewest_to_train_on"), [(10, 5), (28, 16)])
def test_from_ten_people_on_at_least_two_are_tested_and_most_are_trained_on(
    count: int, fewest_to_train_on: int
) -> None:
    for seed in SEEDS:
        found = {split: len(names) for split, names in assign(people(count), seed=seed).items()}
        assert found["test"] >= 2
        assert found["validation"] >= 1
        assert found["train"] >= fewest_to_train_on


def test_fewer_than_ten_people_are_tested_only_with_a_large_fraction() -> None:
    assert all(not assign(people(count), seed=seed)["test"] for count in range(1, 10) for seed in SEEDS)
    asked = [assign(people(5), seed=seed, test_fraction=0.4) for seed in SEEDS]
    # Never a single person; and nobody if fewer than two would remain for training.
    assert {len(found["test"]) for found in asked} == {0, 2}
    assert min(len(found["train"]) for found in asked) == 2


def test_the_fingerprint_of_faces_does_not_contain_the_task() -> None:
    faces, _ = compute_fingerprint(PrepareConfig(input="in", output="out"), "content")
    pictures, _ = compute_fingerprint(PrepareConfig(input="in", output="out", task="pictures"), "content")
    assert "task" not in faces
    assert pictures["task"] == "pictures"
