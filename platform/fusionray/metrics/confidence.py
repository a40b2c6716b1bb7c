"""How sure a figure is: the interval that it would mostly fall into with other rows of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]


class Interval(NamedTuple):
    """Where a figure lies with the share of confidence that was asked for, both ends included."""

    low: float
    high: float


def bootstrap(
    statistic: Callable[..., float],
    columns: Sequence[Column],
    seed: int,
    *,
    rounds: int = 1000,
    share: float = 0.95,
    cluster_N: Column | None = None,
) -> Interval:
    """Draw rows anew, with replacement, and see how far the statistic moves: a percentile interval.

    `statistic(*columns)` takes columns whose rows were drawn together, so that a ratio of two means keeps its pairs.
    Rounds for which it gives nan (a group that was not drawn) are left out; nan if it gives nothing else.

    `cluster_N` names what the rows have in common, such as the source person: rows of one person succeed and fail
    together, and drawn one by one they would pass for more evidence than they are. Whole clusters are drawn then.

    Raises: ValueError without rows, with columns of different length, or a share outside (0, 1).

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", sections 8.4 and 13.3.
    """
    lengths = {len(column) for column in (*columns, *([] if cluster_N is None else [cluster_N]))}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"columns to draw from have {sorted(lengths)} rows: give all the same number, at least one")
    if not 0 < share < 1:
        raise ValueError(f"share={share:g}: give a share of confidence between 0 and 1")
    random = np.random.default_rng(seed)
    draws = draw_rows(random, lengths.pop()) if cluster_N is None else draw_clusters(random, cluster_N)
    values = np.array([float(statistic(*(column[rows] for column in columns))) for rows in islice(draws, rounds)])
    known = values[~np.isnan(values)]
    if not len(known):
        return Interval(float("nan"), float("nan"))
    low, high = np.quantile(known, [(1 - share) / 2, (1 + share) / 2])
    return Interval(float(low), float(high))


def draw_rows(random: np.random.Generator, num_rows: int) -> Iterator[NDArray[np.int64]]:
    """Draw as many rows as there are, with replacement, without end."""
    while True:
        yield random.integers(num_rows, size=num_rows)


def draw_clusters(random: np.random.Generator, cluster_N: Column) -> Iterator[NDArray[np.int64]]:
    """Draw as many clusters as there are, with replacement, without end; yield the rows of each draw."""
    _, index_N, num_rows = np.unique(cluster_N, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(index_N, kind="stable"), np.cumsum(num_rows)[:-1])
    while True:
        yield np.concatenate([rows[index] for index in random.integers(len(rows), size=len(rows))])
