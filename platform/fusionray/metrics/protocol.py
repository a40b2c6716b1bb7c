"""Which pictures an evaluation compares: a seeded list, the same for every model that is shown the same shards.

Shape suffixes: N rows of a split, M pairs, K enrolled rows, P people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

# What a seed is used for; two draws never share a stream of random numbers.
PEOPLE, CIRCLE = 0x70656F, 0x636972


@dataclass(frozen=True, eq=False)
class PairPlan:
    """Rows of a split, counted in its fixed order.

    `pairs` int64 [M,2]: source and target of different people, no pair twice. `enrolled` int64 [K]: the pictures that
    make each person's template. `num_single`: people of one picture, which has to be all three.
    """

    pairs: Rows
    gallery: Rows
    num_people: int
    num_single: int

    def used_rows(self) -> Rows:
        """List every row that takes part, ascending."""
        return np.unique(np.concatenate([self.pairs.ravel(), self.gallery]))


@dataclass(frozen=True, eq=False)
class PairPool:
    """The rows that may be source or target, person after person: `rows` [R], of which `count` [P] from `first` [P]."""

    rows: Rows
    first: Rows
    count: Rows


def plan_pairs(names: Sequence[str], *, pairs: int, people: int, gallery_images: int, seed: int) -> PairPlan:
    """Choose people, the pictures that enrol them, and pairs of their other pictures.

    `names` [N] tells whose each row is. Fewer pairs than asked for are given only where there are no more different
    ones. `enrolled` pictures of each person make the template, fewer where one must be left to be fused.

    Raises: ValueError with fewer than two people.
    """
    every, person_N = np.unique(np.asarray(names, dtype=np.str_), return_inverse=True)
    if len(every) < 2:
        raise ValueError(f"pairs need two people, and there are {len(every)} in {len(person_N)} pictures")
    random = np.random.default_rng([seed, PEOPLE])
    chosen = random.permutation(len(every))[:people]
    own = [random.permutation(np.flatnonzero(person_N == person)) for person in chosen]
    others = [rows[min(gallery_images, len(rows) - 1) :] for rows in own]
    count = np.array([len(rows) for rows in others])
    cast = PairPool(np.concatenate(others), np.cumsum(count) - count, count)
    return PairPlan(
        pairs=draw_pairs(cast, pairs, seed),
        gallery=np.concatenate([rows[: max(1, min(gallery_images, len(rows) - 1))] for rows in own]),
        num_people=len(chosen),
        num_single=sum(len(rows) == 1 for rows in own),
    )


def draw_pairs(cast: PairPool, count: int, seed: int) -> Rows:
    """Draw pairs so that every person is source as often as target, and as often as every other person."""
    drawn: list[Rows] = []
    missing = count
    for pairs in circles(cast, seed):
        drawn.append(pairs[:missing])
        missing -= len(drawn[-1])
        if not missing:
            break
    return np.concatenate(drawn)


def circles(cast: PairPool, seed: int) -> Iterator[Rows]:
    """Yield rounds in which each person is source once and target once, until no new pair is left.

    People stand in a circle and look at the one `step` places on: each step gives other pairs of people, and each lap
    over all steps other pictures of them.
    """
    num_people = len(cast.count)
    steps = np.random.default_rng([seed, CIRCLE]).permutation(num_people - 1) + 1
    source = np.arange(num_people)
    for lap in range(int(cast.count.max()) ** 2):
        for step in steps.tolist():
            target = (source + step) % num_people
            choices = cast.count[source] * cast.count[target]
            start = np.random.default_rng([seed, CIRCLE, step]).uniform(size=num_people) * choices
            choice = (start.astype(np.int64) + lap) % choices
            chosen = np.stack(
                [
                    cast.rows[cast.first[source] + choice % cast.count[source]],
                    cast.rows[cast.first[target] + choice // cast.count[source]],
                ],
                axis=1,
            )
            yield chosen[lap < choices]
