"""Bootstrap confidence intervals of a statistic over rows, or over clusters of rows that are not independent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]


class Interval(NamedTuple):
    """A confidence interval, both ends included."""

    low: float
    high: float


def bootstrap(
    statistic: Callable[..., float],
    columns: Sequence[Column],
    seed: int,
    *,
    rounds: int = 1000,
    level: float = 0.95,
    cluster_N: Column | None = None,
) -> Interval:
    """Resample rows with replacement and return the percentile interval of the statistic at a confidence level.

    `statistic(*columns)` takes columns whose rows are drawn together, so that a ratio of two means keeps its pairs.
    Rounds whose statistic is nan (a group was not drawn) are left out; the interval is nan if no round is left.

    `cluster_N` names what rows have in common, such as the source person. Rows of a cluster are not independent, so
    whole clusters are drawn; single rows would give intervals that are too narrow.

    Raises: ValueError without rows, with columns of different length, or a level outside (0, 1).

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", sections 8.4 and 13.3.
    """
    lengths = {len(column) for column in (*columns, *([] if cluster_N is None else [cluster_N]))}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"columns have {sorted(lengths)} rows: all must have the same number, at least one")
    if not 0 < level < 1:
        raise ValueError(f"level={level:g}: the confidence level must lie between 0 and 1")
    random = np.random.default_rng(seed)
    draws = draw_rows(random, lengths.pop()) if cluster_N is None else draw_clusters(random, cluster_N)
    values = np.array([float(statistic(*(column[rows] for column in columns))) for rows in islice(draws, rounds)])
    known = values[~np.isnan(values)]
    if not len(known):
        return Interval(float("nan"), float("nan"))
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def draw_rows(random: np.random.Generator, num_rows: int) -> Iterator[NDArray[np.int64]]:
    """Yield draws of `num_rows` rows with replacement, without end."""
    while True:
        yield random.integers(num_rows, size=num_rows)


def draw_clusters(random: np.random.Generator, cluster_N: Column) -> Iterator[NDArray[np.int64]]:
    """Yield draws of as many clusters as there are, with replacement, without end; each as the rows of its clusters."""
    _, index_N, num_rows = np.unique(cluster_N, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(index_N, kind="stable"), np.cumsum(num_rows)[:-1])
    while True:
        yield np.concatenate([rows[index] for index in random.integers(len(rows), size=len(rows))])
