"""Plan the shards: assign people to splits, and their pictures to files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionray.data.prepare.picture_entries import PictureEntries
from fusionray.data.segments import RowIndices
from fusionray.data.shards import SPLITS, Split

# An evaluation compares at least two people. With fewer than ten, none are held out for the test by default.
_FEWEST_COMPARED = 2
_FEWEST_TO_TEST = 10


@dataclass(frozen=True, slots=True, eq=False)
class PlannedShard:
    """One shard to make: its file name, its split, and the numbers of its pictures among the entries."""

    file: str
    split: Split
    rows: RowIndices

    @property
    def report_file(self) -> str:
        """Return the path of the report of this shard, relative to the output."""
        return f"parts/{self.file.removesuffix('.parquet')}.json"


def plan_shards(
    entries: PictureEntries, *, seed: int, validation_fraction: float, test_fraction: float, rows_per_shard: int
) -> list[PlannedShard]:
    """Plan shards of at most `rows_per_shard` pictures; only a person with more pictures is divided."""
    splits = assign_splits(
        entries.identities.to_pylist(),
        seed=seed,
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
    )
    order, counts = entries.rows_by_person()
    ends = np.cumsum(counts)
    planned_shards: list[PlannedShard] = []
    for index, split in enumerate(SPLITS):
        number = 0
        for people in _share_shards(np.flatnonzero(splits == index), counts, rows_per_shard):
            rows = np.concatenate([order[ends[person] - counts[person] : ends[person]] for person in people])
            for start in range(0, len(rows), rows_per_shard):
                file = f"shard-{split}-{number:05d}.parquet"
                planned_shards.append(PlannedShard(file, split, rows[start : start + rows_per_shard]))
                number += 1
    return planned_shards


def assign_splits(
    identities: Sequence[str], *, seed: int, validation_fraction: float, test_fraction: float
) -> NDArray[np.int8]:
    """Assign each person to a split by a keyed hash of the name, so that new people do not move others.

    Returns the index in `SPLITS` of each. Validation takes the lowest hashes and test the highest: the fraction of one
    does not change the people of the other. With few people the counts differ from the fractions: see
    `_count_validation`, `_count_test`.
    """
    place = np.fromiter((_place(identity, seed) for identity in identities), np.float64, len(identities))
    ranked = np.argsort(place, kind="stable")
    num_validation = _count_validation(place, validation_fraction)
    num_test = _count_test(place[ranked[num_validation:]], len(place), test_fraction)
    splits = np.full(len(place), SPLITS.index("train"), np.int8)
    splits[ranked[:num_validation]] = SPLITS.index("validation")
    splits[ranked[len(ranked) - num_test :]] = SPLITS.index("test")
    return splits


def _count_validation(place: NDArray[np.float64], fraction: float) -> int:
    """Count the people of validation: at least one of two or more, and never all."""
    count = int(np.count_nonzero(place < fraction))
    if fraction > 0:
        count = max(count, 1)
    return max(0, min(count, len(place) - 1))


def _count_test(place: NDArray[np.float64], num_people: int, fraction: float) -> int:
    """Count the people of the test among those that are not in validation: none, or at least two; two remain.

    An evaluation compares people: a single one would be of no use. Of fewer than ten people none are taken, unless
    the fraction gives two or more.
    """
    if not fraction or (num_people < _FEWEST_TO_TEST and fraction * num_people < _FEWEST_COMPARED):
        return 0
    count = int(np.count_nonzero(place >= 1 - fraction))
    count = min(max(count, _FEWEST_COMPARED), len(place) - _FEWEST_COMPARED)
    return count if count >= _FEWEST_COMPARED else 0


def _place(identity: str, seed: int) -> float:
    digest = hashlib.blake2b(identity.encode(), digest_size=8, key=seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") / 2**64


def _share_shards(people: RowIndices, counts: RowIndices, rows_per_shard: int) -> Iterator[list[int]]:
    """Yield people who share a shard; a person with more pictures than a shard holds is yielded alone."""
    current: list[int] = []
    num_rows = 0
    for person in people.tolist():
        count = int(counts[person])
        if count > rows_per_shard:
            yield [person]
            continue
        if num_rows + count > rows_per_shard:
            yield current
            current, num_rows = [], 0
        current.append(person)
        num_rows += count
    if current:
        yield current
