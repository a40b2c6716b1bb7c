"""The pairs of an evaluation: a seeded plan, which is the same for all models that are evaluated on the same shards.

Shape suffixes: N rows of a split, M pairs, K gallery rows, P people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RowIndices = NDArray[np.int64]

# Second part of the seeds, so that each draw has its own stream of random numbers.
PEOPLE, CIRCLE = 0x70656F, 0x636972


@dataclass(frozen=True, eq=False)
class PairPlan:
    """Rows of a split, counted in its fixed order.

    `pairs` int64 [M,2]: source and target, of different people; no pair occurs twice. `gallery` int64 [K]: the
    pictures of each person's template. `num_single`: people with one picture, which is source, target and gallery.
    """

    pairs: RowIndices
    gallery: RowIndices
    num_people: int
    num_single: int

    def used_rows(self) -> RowIndices:
        """Return all rows in use, ascending."""
        return np.unique(np.concatenate([self.pairs.ravel(), self.gallery]))


@dataclass(frozen=True, eq=False)
class PairPool:
    """The rows that may be source or target, grouped by person: `rows` [R]; `count` [P] rows from `first` [P]."""

    rows: RowIndices
    first: RowIndices
    count: RowIndices


def plan_pairs(names: Sequence[str], *, pairs: int, people: int, gallery_images: int, seed: int) -> PairPlan:
    """Choose people, their gallery pictures, and pairs of their other pictures.

    `names` [N]: the person of each row. `pairs`: number of pairs; the plan has fewer only if no more exist.
    `gallery_images`: pictures of each person's template; fewer if no picture would be left to fuse.

    Raises: ValueError with fewer than two people.
    """
    every, person_N = np.unique(np.asarray(names, dtype=np.str_), return_inverse=True)
    if len(every) < 2:
        raise ValueError(f"pairs need two people, but there are {len(every)} in {len(person_N)} pictures")
    random = np.random.default_rng([seed, PEOPLE])
    chosen = random.permutation(len(every))[:people]
    own = [random.permutation(np.flatnonzero(person_N == person)) for person in chosen]
    others = [rows[min(gallery_images, len(rows) - 1) :] for rows in own]
    count = np.array([len(rows) for rows in others])
    pool = PairPool(np.concatenate(others), np.cumsum(count) - count, count)
    return PairPlan(
        pairs=draw_pairs(pool, pairs, seed),
        gallery=np.concatenate([rows[: max(1, min(gallery_images, len(rows) - 1))] for rows in own]),
        num_people=len(chosen),
        num_single=sum(len(rows) == 1 for rows in own),
    )


def draw_pairs(pool: PairPool, count: int, seed: int) -> RowIndices:
    """Draw pairs [M,2] in which every person is source and target equally often."""
    drawn: list[RowIndices] = []
    missing = count
    for pairs in cyclic_rounds(pool, seed):
        drawn.append(pairs[:missing])
        missing -= len(drawn[-1])
        if not missing:
            break
    return np.concatenate(drawn)


def cyclic_rounds(pool: PairPool, seed: int) -> Iterator[RowIndices]:
    """Yield rounds of pairs in which each person is source once and target once, until no new pair is left.

    In a round, the target is the person `step` positions after the source, cyclically. Each step pairs other people,
    and each lap over all steps pairs other pictures of them.
    """
    num_people = len(pool.count)
    steps = np.random.default_rng([seed, CIRCLE]).permutation(num_people - 1) + 1
    source = np.arange(num_people)
    for lap in range(int(pool.count.max()) ** 2):
        for step in steps.tolist():
            target = (source + step) % num_people
            choices = pool.count[source] * pool.count[target]
            start = np.random.default_rng([seed, CIRCLE, step]).uniform(size=num_people) * choices
            choice = (start.astype(np.int64) + lap) % choices
            chosen = np.stack(
                [
                    pool.rows[pool.first[source] + choice % pool.count[source]],
                    pool.rows[pool.first[target] + choice // pool.count[source]],
                ],
                axis=1,
            )
            yield chosen[lap < choices]
