"""Shards keep people whole, and the held-out people stay held out when others join."""

from __future__ import annotations

from typing import Any

import pytest

from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.output import compute_fingerprint
from fusionray.data.prepare.plan import assign_splits, plan_chunks
from fusionray.data.prepare.source import Entry
from fusionray.data.shards import SPLITS

SEEDS = range(40)


def pictures(people: dict[str, int]) -> list[Entry]:
    return [Entry(name, f"{name}/{k}", str(k)) for name, count in people.items() for k in range(count)]


def people(count: int, letter: str = "p") -> list[str]:
    return [f"{letter}{number}" for number in range(count)]


def assign(names: list[str], **changes: Any) -> dict[str, set[str]]:
    """Assign splits with the defaults of prepare; returns the people of each."""
    settings = {"seed": 0, "validation_fraction": 0.1, "test_fraction": 0.1, **changes}
    split_of = assign_splits(names, **settings)
    assert list(split_of) == names
    return {split: {name for name in names if split_of[name] == split} for split in SPLITS}


def test_no_person_is_divided_and_none_is_in_two_splits() -> None:
    entries = pictures({f"p{n}": 1 + n % 7 for n in range(100)})
    chunks = plan_chunks(entries, seed=1, validation_fraction=0.2, test_fraction=0.2, rows_per_shard=20)
    assert sorted(entry for chunk in chunks for entry in chunk.entries) == sorted(entries)
    homes: dict[str, set[str]] = {}
    for chunk in chunks:
        assert 0 < len(chunk.entries) <= 20
        assert chunk.split in chunk.file
        for entry in chunk.entries:
            homes.setdefault(entry.identity, set()).add(chunk.file)
    assert all(len(files) == 1 for files in homes.values())
    assert len({chunk.file for chunk in chunks}) == len(chunks)
    assert {chunk.split for chunk in chunks} == set(SPLITS)


def test_a_person_with_more_pictures_than_a_shard_fills_several() -> None:
    entries = pictures({"a": 3, "huge": 25, "b": 3})
    chunks = plan_chunks(entries, seed=0, validation_fraction=0, test_fraction=0, rows_per_shard=10)
    assert sorted(len(chunk.entries) for chunk in chunks) == [5, 6, 10, 10]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_people_who_join_move_nobody_else(split: str) -> None:
    before = people(200)
    after = [*before, *people(150, "q")]
    held_out = assign(before, seed=7)[split]
    assert 8 <= len(held_out) <= 35
    assert assign(after, seed=7)[split] & set(before) == held_out
    assert assign(before, seed=8)[split] != held_out


def test_the_share_of_one_split_decides_nothing_about_the_people_of_the_other() -> None:
    names = people(200)
    usual = assign(names)
    assert assign(names, test_fraction=0.0)["validation"] == usual["validation"]
    assert assign(names, test_fraction=0.5)["validation"] == usual["validation"]
    assert assign(names, validation_fraction=0.0)["test"] == usual["test"]
    assert usual["test"] < assign(names, test_fraction=0.3)["test"]


def test_the_people_held_out_for_validation_are_those_that_were_before_there_was_a_test() -> None:
    # Found with the version before: their shards, and what was learned from them, stay comparable.
    assert assign(people(24), seed=3)["validation"] == {"p12", "p13", "p14", "p19", "p22"}


def test_few_people_still_give_training_and_validation() -> None:
    for count in (2, 3, 5):
        for fraction in (0.01, 0.99):
            found = assign(people(count), validation_fraction=fraction, test_fraction=0.005)
            assert 0 < len(found["validation"]) < count
            assert not found["test"]
    assert assign(["only"], validation_fraction=0.99, test_fraction=0.0)["train"] == {"only"}
    assert assign(["a", "b"], validation_fraction=0.0, test_fraction=0.0)["train"] == {"a", "b"}


@pytest.mark.parametrize(("count", "fewest_to_learn_from"), [(10, 5), (28, 16)])
def test_from_ten_people_on_at_least_two_are_tested_and_most_are_learned_from(
    count: int, fewest_to_learn_from: int
) -> None:
    for seed in SEEDS:
        found = {split: len(names) for split, names in assign(people(count), seed=seed).items()}
        assert found["test"] >= 2
        assert found["validation"] >= 1
        assert found["train"] >= fewest_to_learn_from


def test_fewer_than_ten_people_are_tested_only_if_that_is_asked_for() -> None:
    assert all(not assign(people(count), seed=seed)["test"] for count in range(1, 10) for seed in SEEDS)
    asked = [assign(people(5), seed=seed, test_fraction=0.4) for seed in SEEDS]
    # Never one alone; and rather nobody than leave less than two to learn from.
    assert {len(found["test"]) for found in asked} == {0, 2}
    assert min(len(found["train"]) for found in asked) == 2


def test_shards_of_faces_from_before_there_was_another_task_are_still_the_same() -> None:
    faces, _ = compute_fingerprint(PrepareConfig(input="in", output="out"), "content")
    pictures, _ = compute_fingerprint(PrepareConfig(input="in", output="out", task="pictures"), "content")
    assert "task" not in faces
    assert pictures["task"] == "pictures"
