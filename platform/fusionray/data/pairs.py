"""Sample pairs of encoded crops: within a window for training, a fixed seeded list for evaluation. Does not use Ray.

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

# Columns of synthetic faces from which a true fusion is rendered.
TRUTH_COLUMNS = ("identity_parameters", "attribute_parameters", "view")


class EncodedCrop(NamedTuple):
    """One encoded crop with its person; in shards of pictures, with the picture it is cut from."""

    image: bytes | memoryview
    identity: str


@dataclass(frozen=True, eq=False)
class EncodedCrops:
    """Rows of shards as columns, still encoded.

    `images` [N] JPEG or PNG; `people` their names; `person` int64 [N] the index of each crop into `people`; `truth`
    float32 [N,P] by column, for synthetic faces only; `regions` [N] grey PNGs, if they were read and all rows have one.
    """

    images: Sequence[bytes | memoryview]
    people: Sequence[str]
    person: Indices
    truth: dict[str, NDArray[np.float32]]
    regions: Sequence[bytes | memoryview] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def select(self, indices: Indices) -> list[EncodedCrop]:
        """List some of the crops."""
        return [
            EncodedCrop(self.images[index], self.people[person])
            for index, person in zip(indices.tolist(), self.person[indices].tolist(), strict=True)
        ]

    def select_regions(self, indices: Indices) -> list[bytes | memoryview]:
        """List the regions of some of the crops; empty if regions are not known."""
        return [] if self.regions is None else [self.regions[index] for index in indices.tolist()]


@dataclass(frozen=True, eq=False)
class SampledPairs:
    """Crops in the order in which they were drawn: `indices` int64 [M,R], one column per role."""

    crops: EncodedCrops
    indices: Indices

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, start: int, end: int) -> SampledPairs:
        """Return the draws `start` to `end` - 1."""
        return SampledPairs(self.crops, self.indices[start:end])


def crops_from_tables(tables: Iterable[pa.Table]) -> EncodedCrops:
    """Copy rows out of at least one table, so that the memory of the tables can be released.

    Takes one table at a time: a generator does not have to hold all of them.
    """
    images: list[memoryview] = []
    names: list[pa.Array] = []
    truth: dict[str, list[NDArray[np.float32]]] = {}
    regions: list[memoryview] = []
    for table in tables:
        images += copy_binary_column(table.column("image"))
        if REGION_COLUMN in table.column_names and not table.column(REGION_COLUMN).null_count:
            regions += copy_binary_column(table.column(REGION_COLUMN))
        # In shards of pictures each picture is a group of its own.
        group = "identity" if "identity" in table.column_names else "source"
        names.append(pa.array(table.column(group).to_pylist(), pa.string()))
        for column in TRUTH_COLUMNS if "view" in table.column_names else ():
            truth.setdefault(column, []).append(matrix_from_column(table.column(column)).copy())
    people = pa.concat_arrays(names).dictionary_encode()
    return EncodedCrops(
        images,
        people.dictionary.to_pylist(),
        people.indices.to_numpy().astype(np.int64),
        {column: np.concatenate(parts) for column, parts in truth.items()},
        regions if len(regions) == len(images) else None,
    )


def copy_binary_column(column: pa.ChunkedArray) -> Iterator[memoryview]:
    """Yield the values of a binary column without nulls; each chunk of the column is copied once."""
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
    """Draw a source for each target: with probability `same_identity_ratio` another picture of the same person.

    The source is never the target itself: such a pair would train the model to copy. People with one row give no
    same-person pairs; people with several rows give more, so that the ratio holds if they are enough.

    Raises: ValueError if a target needs a source of another person and all rows show one person.
    """
    by_person: Indices = np.argsort(person_N, kind="stable")
    place = np.empty_like(by_person)
    place[by_person] = np.arange(len(by_person))
    count = np.bincount(person_N)
    first = np.cumsum(count) - count
    own, begin = count[person_N[targets]], first[person_N[targets]]
    has_others = own > 1
    # uniform < p has the probability p.
    ratio = same_identity_ratio * len(targets) / max(1, int(has_others.sum()))
    same = has_others & (random.uniform(size=len(targets)) < ratio)
    others = len(person_N) - own
    if np.any(~same & (others == 0)):
        raise ValueError(
            f"pairs need at least two people among the {len(person_N)} rows of a window; "
            "raise data.shuffle_buffer_rows or add people"
        )
    # Sorted by person, the rows of a person are contiguous: step within them, or within all others, modulo their count.
    step = (random.uniform(size=len(targets)) * np.where(same, own - 1, others)).astype(np.int64)
    within = begin + (place[targets] - begin + 1 + step) % own
    outside = (begin + own + step) % len(person_N)
    sources: Indices = by_person[np.where(same, within, outside)]
    return sources


def draw_pairs(
    crops: EncodedCrops,
    rows: Indices,
    random: np.random.Generator,
    *,
    same_identity_ratio: float = 0.0,
    source_folder: str | None = None,
) -> SampledPairs:
    """Pair each of `rows` [M] with a drawn one: the row is the target, and the drawn one its source.

    `source_folder`: pictures in this folder are sources, and all others targets; a row is paired with one of the other
    kind, so it may be the source. If the crops show one kind only, every row is a target.

    Raises: ValueError as `draw_sources`.
    """
    if source_folder is not None:
        in_folder = np.array([name.partition("/")[0] == source_folder for name in crops.people], bool)
        is_source = in_folder[crops.person]
        if is_source.any() and not is_source.all():
            return SampledPairs(crops, pair_kinds(is_source, rows, random))
    sources = draw_sources(crops.person, rows, same_identity_ratio, random)
    return SampledPairs(crops, np.stack([sources, rows], axis=1))


def pair_kinds(is_source_N: NDArray[np.bool_], rows: Indices, random: np.random.Generator) -> Indices:
    """Pair each of `rows` [M] with a row of the other kind: int64 [M,2] of source and target."""
    kinds = (np.flatnonzero(~is_source_N), np.flatnonzero(is_source_N))
    chosen = is_source_N[rows]
    place = random.uniform(size=len(rows))
    partners = [kind[(place * len(kind)).astype(np.int64)] for kind in kinds]
    sources, targets = np.where(chosen, rows, partners[1]), np.where(chosen, partners[0], rows)
    return np.stack([sources, targets], axis=1)


def draw_held_out_pairs(crops: EncodedCrops, count: int, seed: int, source_folder: str | None = None) -> SampledPairs:
    """Draw `count` pairs of different people, fixed by the seed; each crop is a target once before any is again.

    `source_folder`: as for `draw_pairs`.

    Raises: ValueError with fewer than two people.
    """
    if len(crops.people) < 2:
        raise ValueError(
            "held-out pairs need at least two people; prepare again and hold out more (validation_fraction, "
            "test_fraction)"
        )
    random = np.random.default_rng([seed, 0x70616972])
    rounds = [random.permutation(len(crops)) for _ in range(-(-count // len(crops)))]
    return draw_pairs(crops, np.concatenate(rounds)[:count], random, source_folder=source_folder)


def rebatch(draws: Iterable[SampledPairs], size: int | Iterator[int]) -> Iterator[list[SampledPairs]]:
    """Join and divide draws into groups of `size` rows; the last group may be smaller.

    `size`: rows of every group, or an iterator over the rows of one group after another. The parts of a group may
    refer to different crops.
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
