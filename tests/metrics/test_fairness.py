from __future__ import annotations

import math

import numpy as np
import pytest

from fusionray.metrics.fairness import AGES, SKIN_TONES, compare_groups, compare_tones


def test_each_group_has_the_mean_of_its_rows_and_the_worst_is_named() -> None:
    tone = np.repeat([0.1, 0.5, 0.9], 20)
    hit = np.concatenate([np.arange(20) < 12, np.arange(20) < 18, np.arange(20) < 19])
    groups = compare_groups(hit, tone, SKIN_TONES)
    assert groups.by_group == pytest.approx({"dark": 0.6, "medium": 0.9, "light": 0.95})
    assert groups.num_rows == {"dark": 20, "medium": 20, "light": 20}
    assert groups.worst == "dark"
    assert groups.gap == pytest.approx(0.35)
    assert groups.left_out == ()


def test_groups_are_the_thirds_of_the_parameter_and_the_upper_one_begins_at_its_bound() -> None:
    age = np.array([0.0, 0.33, 1 / 3, 0.66, 2 / 3, 1.0])
    groups = compare_groups(np.arange(6.0), age, AGES, min_rows=1)
    assert groups.by_group == {"young": 0.5, "middle": 2.5, "old": 4.5}


def test_the_order_of_the_rows_does_not_matter() -> None:
    random = np.random.default_rng(0)
    tone, figure = random.uniform(0, 1, 90), random.uniform(0, 1, 90)
    order = random.permutation(90)
    ordered, shuffled = compare_groups(figure, tone, SKIN_TONES), compare_groups(figure[order], tone[order], SKIN_TONES)
    assert shuffled.by_group == pytest.approx(ordered.by_group)
    assert list(shuffled.by_group) == list(SKIN_TONES)


def test_a_group_with_too_few_rows_is_left_out_and_listed() -> None:
    tone = np.repeat([0.1, 0.5, 0.9], [9, 10, 11])
    figure = np.repeat([0.0, 0.8, 0.7], [9, 10, 11])
    groups = compare_groups(figure, tone, SKIN_TONES)
    assert groups.left_out == ("dark",)
    assert groups.num_rows["dark"] == 9
    assert groups.worst == "light"
    assert groups.gap == pytest.approx(0.1)


def test_one_group_alone_has_no_gap_and_no_group_no_worst() -> None:
    figure = np.ones(12)
    alone = compare_groups(figure, np.full(12, 0.5), SKIN_TONES)
    assert alone.worst == "medium"
    assert math.isnan(alone.gap)
    none = compare_groups(figure, np.full(12, 0.5), SKIN_TONES, min_rows=13)
    assert none.worst == ""
    assert none.left_out == SKIN_TONES
    assert math.isnan(none.gap)


def test_rows_without_a_figure_do_not_count() -> None:
    figure = np.array([1.0, math.nan, 0.0, math.nan])
    groups = compare_groups(figure, np.array([0.1, 0.1, 0.1, 0.9]), SKIN_TONES, min_rows=0)
    assert groups.by_group == {"dark": 0.5}
    assert groups.num_rows == {"dark": 2, "medium": 0, "light": 0}


@pytest.mark.parametrize("outside", [-0.1, 1.1, math.nan])
def test_a_parameter_outside_its_range_is_refused(outside: float) -> None:
    with pytest.raises(ValueError, match="dark, medium, light"):
        compare_groups(np.ones(2), np.array([0.5, outside]), SKIN_TONES)


def test_steps_are_compared_for_each_pair_of_tones_and_the_largest_is_the_worst() -> None:
    dark, light = np.full(12, -20.0), np.full(12, 60.0)
    source, target = np.concatenate([dark, light, light]), np.concatenate([light, dark, light])
    step = np.concatenate([np.full(12, 6.0), np.full(12, 9.0), np.full(12, 3.0)])
    own = np.full(36, 3.0)
    step[0] = np.nan
    groups = compare_tones(step, own, source, target)
    assert groups.by_group == {"dark on light": 2.0, "light on dark": 3.0, "light on light": 1.0}
    assert groups.worst == "light on dark"
    assert groups.num_rows["dark on light"] == 11
    assert "dark on dark" in groups.left_out
