"""Shards keep people whole, and the held-out people stay held out when others join."""

from __future__ import annotations

from fusionray.data.prepare.plan import choose_validation, plan_chunks
from fusionray.data.prepare.source import Entry


def pictures(people: dict[str, int]) -> list[Entry]:
    return [Entry(name, f"{name}/{k}", str(k)) for name, count in people.items() for k in range(count)]


def test_no_person_is_divided_and_none_is_in_two_splits() -> None:
    entries = pictures({f"p{n}": 1 + n % 7 for n in range(100)})
    chunks = plan_chunks(entries, seed=1, validation_fraction=0.2, rows_per_shard=20)
    assert sorted(entry for chunk in chunks for entry in chunk.entries) == sorted(entries)
    homes: dict[str, set[str]] = {}
    for chunk in chunks:
        assert 0 < len(chunk.entries) <= 20
        assert chunk.split in chunk.file
        for entry in chunk.entries:
            homes.setdefault(entry.identity, set()).add(chunk.file)
    assert all(len(files) == 1 for files in homes.values())
    assert len({chunk.file for chunk in chunks}) == len(chunks)


def test_a_person_with_more_pictures_than_a_shard_fills_several() -> None:
    chunks = plan_chunks(pictures({"a": 3, "huge": 25, "b": 3}), seed=0, validation_fraction=0, rows_per_shard=10)
    assert sorted(len(chunk.entries) for chunk in chunks) == [5, 6, 10, 10]


def test_people_who_join_move_nobody_else() -> None:
    before = [f"p{n}" for n in range(200)]
    after = [*before, *(f"q{n}" for n in range(150))]
    held_out = choose_validation(before, seed=7, fraction=0.1)
    assert 8 <= len(held_out) <= 35
    assert choose_validation(after, seed=7, fraction=0.1) & set(before) == held_out
    assert choose_validation(before, seed=8, fraction=0.1) != held_out


def test_few_people_still_give_both_splits() -> None:
    for count in (2, 3, 5):
        for fraction in (0.01, 0.99):
            people = [f"p{n}" for n in range(count)]
            assert 0 < len(choose_validation(people, seed=0, fraction=fraction)) < count
    assert choose_validation(["only"], seed=0, fraction=0.01) == set()
    assert choose_validation(["a", "b"], seed=0, fraction=0.0) == set()
