"""Pairs of encoded crops: a shuffling pool for training, a fixed seeded list for evaluation. Knows no Ray."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fusionray.data.shards import matrix_from_column

# How often a target without another picture of its person in the pool is exchanged for another target.
MATE_ATTEMPTS = 16


@dataclass(frozen=True, eq=False)
class Crop:
    """One row of a shard, still encoded; the last three are there for synthetic faces only."""

    image: bytes
    identity: str
    identity_parameters: NDArray[np.float32] | None = None
    attribute_parameters: NDArray[np.float32] | None = None
    view: NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class CropPair:
    """A source and a target, still encoded."""

    source: Crop
    target: Crop

    @property
    def same_identity(self) -> bool:
        """Tell whether both show one person."""
        return self.source.identity == self.target.identity


def crops_from_table(table: pa.Table) -> list[Crop]:
    """Turn rows of a shard into crops."""
    images = table.column("image").to_pylist()
    identities = table.column("identity").to_pylist()
    if "view" not in table.column_names:
        return [Crop(image, identity) for image, identity in zip(images, identities, strict=True)]
    extras = [
        matrix_from_column(table.column(name)) for name in ("identity_parameters", "attribute_parameters", "view")
    ]
    return [Crop(*row) for row in zip(images, identities, *extras, strict=True)]


class CropPool:
    """Hold crops, give them out in random order, each once; crops already given out still serve as sources."""

    def __init__(self, capacity: int, seed: int | Sequence[int]) -> None:
        self.capacity = capacity
        self.random = np.random.default_rng(seed)
        self.waiting: list[Crop] = []
        self.recent: deque[Crop] = deque()
        self.people: dict[str, list[Crop]] = {}

    def add(self, crops: Iterable[Crop]) -> None:
        """Take crops in; the oldest beyond twice the capacity stop serving as sources."""
        for crop in crops:
            self.waiting.append(crop)
            self.recent.append(crop)
            self.people.setdefault(crop.identity, []).append(crop)
        while len(self.recent) > 2 * self.capacity + len(self.waiting):
            oldest = self.recent.popleft()
            mates = self.people[oldest.identity]
            mates.remove(oldest)
            if not mates:
                del self.people[oldest.identity]

    def is_full(self) -> bool:
        """Tell whether there is enough in the pool to draw from."""
        return len(self.waiting) > self.capacity

    def draw(self) -> Crop:
        """Give out one crop."""
        return self.take(int(self.random.integers(len(self.waiting))))

    def draw_pair(self, same_identity_ratio: float) -> CropPair:
        """Give out one crop as target with a source: of the same person in `same_identity_ratio` of the draws.

        The same person always means another picture: fusing a picture with itself teaches copying.
        """
        # uniform < p happens with probability p; a normal draw would not.
        if self.random.uniform() < same_identity_ratio:
            for _ in range(MATE_ATTEMPTS):
                index = int(self.random.integers(len(self.waiting)))
                mates = self.find_mates(self.waiting[index])
                if mates:
                    return CropPair(mates[int(self.random.integers(len(mates)))], self.take(index))
        target = self.draw()
        return CropPair(self.draw_other_person(target), target)

    def find_mates(self, crop: Crop) -> list[Crop]:
        """List other pictures of a crop's person; a small pool still holds the same picture from the last epoch."""
        return [mate for mate in self.people.get(crop.identity, ()) if mate.image != crop.image]

    def draw_other_person(self, target: Crop) -> Crop:
        if not self.people.keys() - {target.identity}:
            raise ValueError("pairs need at least two people in the pool; raise data.pool_rows or add people")
        while True:
            candidate = self.recent[int(self.random.integers(len(self.recent)))]
            if candidate.identity != target.identity:
                return candidate

    def take(self, index: int) -> Crop:
        self.waiting[index], self.waiting[-1] = self.waiting[-1], self.waiting[index]
        return self.waiting.pop()


def draw_held_out_pairs(crops: Sequence[Crop], count: int, seed: int) -> list[CropPair]:
    """Draw a fixed list of pairs of different people; every crop is a target before one is a target again.

    Raises: ValueError with fewer than two people.
    """
    if len({crop.identity for crop in crops}) < 2:
        raise ValueError("held-out pairs need at least two people; raise validation_fraction when preparing")
    random = np.random.default_rng([seed, 0x70616972])
    order = np.concatenate([random.permutation(len(crops)) for _ in range(-(-count // len(crops)))])[:count]
    pairs = []
    for index in order:
        target = crops[int(index)]
        source = target
        while source.identity == target.identity:
            source = crops[int(random.integers(len(crops)))]
        pairs.append(CropPair(source, target))
    return pairs


def pool_pairs(blocks: Iterable[pa.Table], pool: CropPool, same_identity_ratio: float) -> Iterator[CropPair]:
    """Stream blocks of rows through a pool as pairs; what is in the pool at the end of `blocks` stays in it."""
    for block in blocks:
        pool.add(crops_from_table(block))
        while pool.is_full():
            yield pool.draw_pair(same_identity_ratio)


def pool_crops(blocks: Iterable[pa.Table], pool: CropPool) -> Iterator[Crop]:
    """Stream blocks of rows through a pool as single crops."""
    for block in blocks:
        pool.add(crops_from_table(block))
        while pool.is_full():
            yield pool.draw()
