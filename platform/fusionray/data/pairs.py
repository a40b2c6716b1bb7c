"""Pairs of encoded crops: drawn within a window for training, a fixed seeded list for evaluation. Knows no Ray.

Shape suffixes: N crops, M draws, R roles (one: the crop; two: source and target).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fusionray.data.shards import REGION_COLUMN, matrix_from_column

Indices = NDArray[np.int64]

# What a pair of synthetic faces carries beside its pictures.
TRUTH_COLUMNS = ("identity_parameters", "attribute_parameters", "view")


class Crop(NamedTuple):
    """One encoded picture and whose it is; in shards of pictures, which one it is."""

    image: bytes | memoryview
    identity: str


@dataclass(frozen=True, eq=False)
class Crops:
    """Rows of shards as columns, still encoded.

    `images` [N] JPEG or PNG; `people` names, `person` int64 [N] whose picture each is (index into `people`); `truth`
    float32 [N,P] by column, for synthetic faces only; `regions` [N] grey PNGs of where the faces are, if they were read
    and are known of all.
    """

    images: Sequence[bytes | memoryview]
    people: Sequence[str]
    person: Indices
    truth: dict[str, NDArray[np.float32]]
    regions: Sequence[bytes | memoryview] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def select(self, indices: Indices) -> list[Crop]:
        """List some of the crops."""
        return [
            Crop(self.images[index], self.people[person])
            for index, person in zip(indices.tolist(), self.person[indices].tolist(), strict=True)
        ]

    def select_regions(self, indices: Indices) -> list[bytes | memoryview]:
        """List where the faces of some of the crops are; nothing where that is not known."""
        return [] if self.regions is None else [self.regions[index] for index in indices.tolist()]


@dataclass(frozen=True, eq=False)
class SampledPairs:
    """Crops that were drawn, in order: `indices` int64 [M,R], a column a role."""

    crops: Crops
    indices: Indices

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, start: int, end: int) -> SampledPairs:
        """Take the draws from `start` up to `end`."""
        return SampledPairs(self.crops, self.indices[start:end])


def crops_from_tables(tables: Iterable[pa.Table]) -> Crops:
    """Copy rows out of tables, which may lie in memory that others need; at least one table.

    The tables are taken one at a time, so that a generator need not hold them all.
    """
    images: list[memoryview] = []
    names: list[pa.Array] = []
    truth: dict[str, list[NDArray[np.float32]]] = {}
    regions: list[memoryview] = []
    for table in tables:
        images += copy_images(table.column("image"))
        if REGION_COLUMN in table.column_names and not table.column(REGION_COLUMN).null_count:
            regions += copy_images(table.column(REGION_COLUMN))
        # A picture without people is told apart by itself.
        group = "identity" if "identity" in table.column_names else "source"
        names.append(pa.array(table.column(group).to_pylist(), pa.string()))
        for column in TRUTH_COLUMNS if "view" in table.column_names else ():
            truth.setdefault(column, []).append(matrix_from_column(table.column(column)).copy())
    people = pa.concat_arrays(names).dictionary_encode()
    return Crops(
        images,
        people.dictionary.to_pylist(),
        people.indices.to_numpy().astype(np.int64),
        {column: np.concatenate(parts) for column, parts in truth.items()},
        regions if len(regions) == len(images) else None,
    )


def copy_images(column: pa.ChunkedArray) -> Iterator[memoryview]:
    """Yield each picture of a column, in one copy for each of its chunks."""
    for chunk in column.chunks:
        if len(chunk):
            _, offsets, data = chunk.buffers()
            ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
            copied = memoryview(bytes(memoryview(data)[ends[0] : ends[-1]]))
            for start, end in pairwise((ends - ends[0]).tolist()):
                yield copied[start:end]


def draw_sources(
    person_N: Indices, targets: Indices, same_identity_ratio: float, random: np.random.Generator
) -> Indices:
    """Choose a source for each target: another picture of its person in `same_identity_ratio` of the draws.

    The same person always means another row: fusing a picture with itself teaches copying. People with one row can
    give no such pair, so the others give more, and the ratio holds while they can.

    Raises: ValueError if a target needs another person and there is none.
    """
    by_person: Indices = np.argsort(person_N, kind="stable")
    place = np.empty_like(by_person)
    place[by_person] = np.arange(len(by_person))
    count = np.bincount(person_N)
    first = np.cumsum(count) - count
    own, begin = count[person_N[targets]], first[person_N[targets]]
    with_mate = own > 1
    # uniform < p happens with probability p; a normal draw would not.
    ratio = same_identity_ratio * len(targets) / max(1, int(with_mate.sum()))
    same = with_mate & (random.uniform(size=len(targets)) < ratio)
    others = len(person_N) - own
    if np.any(~same & (others == 0)):
        raise ValueError(
            f"pairs need at least two people among the {len(person_N)} rows that are drawn from together; "
            "raise data.shuffle_buffer_rows or add people"
        )
    # Sorted by person, a person's rows are one stretch: a step from a row round it, or round all the rest.
    step = (random.uniform(size=len(targets)) * np.where(same, own - 1, others)).astype(np.int64)
    within = begin + (place[targets] - begin + 1 + step) % own
    outside = (begin + own + step) % len(person_N)
    sources: Indices = by_person[np.where(same, within, outside)]
    return sources


def draw_held_out_pairs(crops: Crops, count: int, seed: int) -> SampledPairs:
    """Draw a fixed list of pairs of different people; every crop is a target before one is a target again.

    Raises: ValueError with fewer than two people.
    """
    if len(crops.people) < 2:
        raise ValueError(
            "held-out pairs need at least two people; prepare again and hold out more (validation_fraction, "
            "test_fraction)"
        )
    random = np.random.default_rng([seed, 0x70616972])
    rounds = [random.permutation(len(crops)) for _ in range(-(-count // len(crops)))]
    targets = np.concatenate(rounds)[:count]
    return SampledPairs(crops, np.stack([draw_sources(crops.person, targets, 0.0, random), targets], axis=1))


def regroup(draws: Iterable[SampledPairs], size: int | Iterator[int]) -> Iterator[list[SampledPairs]]:
    """Join and divide draws into groups of `size`, whose parts may have different crops; the last may be smaller.

    `size`: rows of every group, or of one group after another.
    """
    sizes = itertools.repeat(size) if isinstance(size, int) else size
    group: list[SampledPairs] = []
    missing = next(sizes)
    for item in draws:
        start = 0
        while start < len(item):
            taken = item.part(start, min(start + missing, len(item)))
            group.append(taken)
            start += len(taken)
            missing -= len(taken)
            if not missing:
                yield group
                group, missing = [], next(sizes)
    if group:
        yield group
