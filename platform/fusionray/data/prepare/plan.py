"""Plan the shards: assign people to splits, and their pictures to files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusionray.data.prepare.picture_input import PictureEntry
from fusionray.data.shards import SPLITS, Split

# An evaluation compares at least two people. With fewer than ten, none are held out for the test by default.
_FEWEST_COMPARED = 2
_FEWEST_TO_TEST = 10


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard to make: its file name, its split and its pictures."""

    file: str
    split: Split
    entries: tuple[PictureEntry, ...]

    @property
    def report_file(self) -> str:
        """Return the path of the report of this shard, relative to the output."""
        return f"parts/{self.file.removesuffix('.parquet')}.json"


def plan_shards(
    entries: Sequence[PictureEntry], *, seed: int, validation_fraction: float, test_fraction: float, rows_per_shard: int
) -> list[PlannedShard]:
    """Plan shards of at most `rows_per_shard` pictures; only a person with more pictures is divided."""
    people: dict[str, list[PictureEntry]] = {}
    for entry in entries:
        people.setdefault(entry.identity, []).append(entry)
    split_of = assign_splits(people, seed=seed, validation_fraction=validation_fraction, test_fraction=test_fraction)
    planned_shards: list[PlannedShard] = []
    for split in SPLITS:
        persons = [pictures for identity, pictures in people.items() if split_of[identity] == split]
        for number, group in enumerate(_fill(persons, rows_per_shard)):
            planned_shards.append(PlannedShard(f"shard-{split}-{number:05d}.parquet", split, tuple(group)))
    return planned_shards


def assign_splits(
    identities: Iterable[str], *, seed: int, validation_fraction: float, test_fraction: float
) -> dict[str, Split]:
    """Assign each person to a split by a keyed hash of the name, so that new people do not move others.

    Validation takes the lowest hashes and test the highest: the fraction of one does not change the people of the
    other. With few people the counts differ from the fractions: see `_choose_validation`, `_choose_test`.
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
    """Take the first people: at least one of two or more, and never all."""
    count = sum(place[identity] < fraction for identity in ranked)
    if fraction > 0:
        count = max(count, 1)
    return ranked[: min(count, len(ranked) - 1)]


def _choose_test(ranked: list[str], place: Mapping[str, float], fraction: float) -> list[str]:
    """Take the last of the people that are not in validation: none, or at least two; two remain for training.

    An evaluation compares people: a single one would be of no use. Of fewer than ten people none are taken, unless
    the fraction gives two or more.
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


def _fill(persons: Iterable[list[PictureEntry]], rows_per_shard: int) -> list[list[PictureEntry]]:
    groups: list[list[PictureEntry]] = []
    current: list[PictureEntry] = []
    for pictures in persons:
        if len(pictures) > rows_per_shard:
            groups += [pictures[start : start + rows_per_shard] for start in range(0, len(pictures), rows_per_shard)]
            continue
        if len(current) + len(pictures) > rows_per_shard:
            groups.append(current)
            current = []
        current = current + pictures
    return [*groups, current] if current else groups
