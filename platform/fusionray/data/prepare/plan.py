"""Divide pictures into shards: who is held out, and which people share a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusionray.data.prepare.source import Entry
from fusionray.data.shards import SPLITS, Split

# People that it takes to compare any two, and how many there are before some are set aside for the test unasked.
_FEWEST_COMPARED = 2
_FEWEST_TO_TEST = 10


@dataclass(frozen=True, slots=True)
class Chunk:
    """The work for one shard: its file name, its split and the pictures to try."""

    file: str
    split: Split
    entries: tuple[Entry, ...]

    @property
    def report_file(self) -> str:
        """Name the small file that says how the work went, relative to the output."""
        return f"parts/{self.file.removesuffix('.parquet')}.json"


def plan_chunks(
    entries: Sequence[Entry], *, seed: int, validation_fraction: float, test_fraction: float, rows_per_shard: int
) -> list[Chunk]:
    """Divide pictures into chunks of about `rows_per_shard`, whole people in each; a larger person fills several."""
    people: dict[str, list[Entry]] = {}
    for entry in entries:
        people.setdefault(entry.identity, []).append(entry)
    split_of = assign_splits(people, seed=seed, validation_fraction=validation_fraction, test_fraction=test_fraction)
    chunks: list[Chunk] = []
    for split in SPLITS:
        persons = [pictures for identity, pictures in people.items() if split_of[identity] == split]
        for number, group in enumerate(_fill(persons, rows_per_shard)):
            chunks.append(Chunk(f"shard-{split}-{number:05d}.parquet", split, tuple(group)))
    return chunks


def assign_splits(
    identities: Iterable[str], *, seed: int, validation_fraction: float, test_fraction: float
) -> dict[str, Split]:
    """Give each person a split by a keyed hash of the name, so that people who join move nobody else.

    Validation takes from one end of the hash and the test from the other: the share of one decides nothing about the
    other's people. Of few people both take less or more than their share: see `_choose_validation`, `_choose_test`.
    """
    place = {identity: _place(identity, seed) for identity in identities}
    ranked = sorted(place, key=lambda identity: (place[identity], identity))
    validation = _choose_validation(ranked, place, validation_fraction)
    test = _choose_test(ranked[len(validation) :], place, test_fraction)
    return {
        **dict.fromkeys(place, "train"),
        **dict.fromkeys(validation, "validation"),
        **dict.fromkeys(test, "test"),
    }


def _choose_validation(ranked: list[str], place: Mapping[str, float], fraction: float) -> list[str]:
    """Take the first people: at least one where there are two, and never all."""
    count = sum(place[identity] < fraction for identity in ranked)
    if fraction > 0:
        count = max(count, 1)
    return ranked[: min(count, len(ranked) - 1)]


def _choose_test(ranked: list[str], place: Mapping[str, float], fraction: float) -> list[str]:
    """Take the last people of those whom validation left over: nobody or at least two, and two stay to learn from.

    A verdict compares people, so that one alone would be lost for nothing. Fewer than ten people lose none to the
    test, unless its share of them is two or more.
    """
    num_people = len(place)
    if not fraction or (num_people < _FEWEST_TO_TEST and fraction * num_people < _FEWEST_COMPARED):
        return []
    count = sum(place[identity] >= 1 - fraction for identity in ranked)
    count = min(max(count, _FEWEST_COMPARED), len(ranked) - _FEWEST_COMPARED)
    return ranked[-count:] if count >= _FEWEST_COMPARED else []


def _place(identity: str, seed: int) -> float:
    digest = hashlib.blake2b(identity.encode(), digest_size=8, key=seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") / 2**64


def _fill(persons: Iterable[list[Entry]], rows_per_shard: int) -> list[list[Entry]]:
    groups: list[list[Entry]] = []
    current: list[Entry] = []
    for pictures in persons:
        if len(pictures) > rows_per_shard:
            groups += [pictures[start : start + rows_per_shard] for start in range(0, len(pictures), rows_per_shard)]
            continue
        if len(current) + len(pictures) > rows_per_shard:
            groups.append(current)
            current = []
        current = current + pictures
    return [*groups, current] if current else groups
