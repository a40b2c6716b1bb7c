from __future__ import annotations

import math

import pytest

from fusionray.reporting.scales import Scale, choose_ends, choose_step, format_number


def test_a_scale_maps_its_ends_and_values_between() -> None:
    scale = Scale(10, 20, 0, 100)
    assert [scale.place(value) for value in (10, 12.5, 20)] == [0, 25, 100]
    assert [scale.place(value) for value in (-5, 99)] == [0, 100], "what lies beyond stands at the end"
    upwards = Scale(0, 1, 200, 20)
    assert [upwards.place(value) for value in (0, 0.5, 1)] == [200, 110, 20]


def test_a_logarithmic_scale_gives_each_power_the_same_room() -> None:
    scale = Scale(1e-3, 1, 0, 30, logarithmic=True)
    assert [scale.place(value) for value in (1e-3, 1e-2, 0.1, 1)] == pytest.approx([0, 10, 20, 30])
    assert scale.ticks() == pytest.approx([1e-3, 1e-2, 0.1, 1])


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 9000, [0, 2000, 4000, 6000, 8000]),
        (-0.3, 0.1, [-0.3, -0.2, -0.1, 0, 0.1]),
        (0.92, 0.96, [0.92, 0.93, 0.94, 0.95, 0.96]),
    ],
)
def test_ticks_are_a_few_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert Scale(low, high, 0, 1).ticks() == pytest.approx(ticks)


@pytest.mark.parametrize("span", [1e-9, 0.003, 0.7, 1, 12, 999, 1e12])
def test_a_step_divides_a_span_into_few_parts(span: float) -> None:
    assert 2 <= math.ceil(span / choose_step(span) - 1e-9) <= 5


def test_ends_are_round_and_hold_every_value() -> None:
    assert choose_ends([0.13, 0.88]) == pytest.approx((0.0, 1.0))
    assert choose_ends([1234.0, 1300.0, math.nan]) == pytest.approx((1220.0, 1300.0))


@pytest.mark.parametrize("values", [[], [0.0], [3.0], [-2.0, -2.0], [1e-12], [math.nan]])
def test_ends_always_differ(values: list[float]) -> None:
    low, high = choose_ends(values)
    assert low < high
    assert all(low <= value <= high for value in values if math.isfinite(value))


def test_numbers_of_an_axis_are_short() -> None:
    values = (0, 0.25, 1500, 20000, 3_000_000, 2.5e9)
    assert [format_number(value) for value in values] == ["0", "0.25", "1500", "20k", "3M", "2.5G"]
