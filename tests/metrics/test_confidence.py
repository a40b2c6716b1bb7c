from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionray.metrics.confidence import Interval, bootstrap

Column = NDArray[np.float64]


def mean(column: Column) -> float:
    return float(column.mean())


def ratio(first: Column, second: Column) -> float:
    return float(first.mean() / second.mean())


def width(interval: Interval) -> float:
    return interval.high - interval.low


def test_the_interval_of_a_mean_of_normal_data_is_the_textbooks() -> None:
    column = np.random.default_rng(0).normal(5, 2, 400)
    interval = bootstrap(mean, [column], seed=0, rounds=4000)
    half = 1.96 * column.std() / math.sqrt(400)
    assert interval.low == pytest.approx(column.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(column.mean() + half, abs=0.1 * half)


def test_the_interval_is_that_of_all_possible_draws() -> None:
    column = np.array([0.0, 1.0, 3.0, 4.0, 9.0])
    every = [column[list(rows)].mean() for rows in product(range(5), repeat=5)]
    interval = bootstrap(mean, [column], seed=0, rounds=20000, level=0.8)
    assert interval == pytest.approx(np.quantile(every, [0.1, 0.9]), abs=0.2)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    random = np.random.default_rng(1)
    intervals = [bootstrap(mean, [random.normal(0, 1, 60)], seed=seed, rounds=300) for seed in range(300)]
    assert np.mean([low <= 0 <= high for low, high in intervals]) == pytest.approx(0.95, abs=0.03)


def test_rows_of_several_columns_are_drawn_together() -> None:
    column = np.random.default_rng(2).uniform(1, 2, 50)
    assert bootstrap(ratio, [3 * column, column], seed=0) == pytest.approx((3, 3))
    assert bootstrap(lambda first, second: np.array_equal(first, 3 * second), [3 * column, column], seed=0) == (1, 1)
    apart = bootstrap(ratio, [3 * column, column[::-1]], seed=0)
    assert width(apart) > 0.1


def test_a_larger_share_and_fewer_rows_widen_the_interval() -> None:
    column = np.random.default_rng(3).normal(0, 1, 400)
    usual = width(bootstrap(mean, [column], seed=0))
    assert width(bootstrap(mean, [column], seed=0, level=0.99)) > 1.2 * usual
    assert width(bootstrap(mean, [column[:100]], seed=0)) == pytest.approx(2 * usual, rel=0.3)


def test_the_seed_decides() -> None:
    column = np.random.default_rng(4).normal(0, 1, 30)
    assert bootstrap(mean, [column], seed=1) == bootstrap(mean, [column], seed=1)
    assert bootstrap(mean, [column], seed=1) != bootstrap(mean, [column], seed=2)


def test_copies_of_a_person_do_not_narrow_the_interval() -> None:
    people = np.random.default_rng(5).normal(0, 1, 40)
    order = np.random.default_rng(6).permutation(400)
    column, person = np.repeat(people, 10)[order], np.repeat(np.char.mod("p%d", np.arange(40)), 10)[order]
    truth = width(bootstrap(mean, [people], seed=0, rounds=2000))
    together = bootstrap(mean, [column], seed=0, rounds=2000, cluster_N=person)
    one_by_one = bootstrap(mean, [column], seed=0, rounds=2000)
    assert width(together) == pytest.approx(truth, rel=0.1)
    assert width(one_by_one) == pytest.approx(truth / math.sqrt(10), rel=0.1)


def test_clusters_of_different_size_are_drawn_as_a_whole() -> None:
    column, person = np.array([1.0, 1.0, 1.0, 5.0]), np.array(["a", "a", "a", "b"])
    seen: set[tuple[float, ...]] = set()

    def remember(drawn: Column) -> float:
        seen.add(tuple(sorted(drawn.tolist())))
        return float(drawn.mean())

    bootstrap(remember, [column], seed=0, rounds=50, cluster_N=person)
    assert seen == {(1.0,) * 6, (1.0, 1.0, 1.0, 5.0), (5.0, 5.0)}


def test_rounds_without_a_value_are_left_out() -> None:
    column = np.array([0.0, 1.0])
    interval = bootstrap(lambda drawn: mean(drawn) if drawn.any() else math.nan, [column], seed=0)
    assert interval == (0.5, 1.0)
    assert all(math.isnan(end) for end in bootstrap(lambda drawn: math.nan, [column], seed=0))


def test_columns_that_cannot_be_drawn_from_are_refused() -> None:
    column = np.ones(4)
    for columns in ([], [column[:0]], [column, column[:3]]):
        with pytest.raises(ValueError, match="same number, at least one"):
            bootstrap(mean, columns, seed=0)
    with pytest.raises(ValueError, match="same number, at least one"):
        bootstrap(mean, [column], seed=0, cluster_N=np.arange(3))
    with pytest.raises(ValueError, match="level=95"):
        bootstrap(mean, [column], seed=0, level=95)
