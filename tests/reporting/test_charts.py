from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from fusionray.reporting.charts import (
    HEIGHT,
    WIDTH,
    ChartLine,
    MeasuredInterval,
    ParallelAxis,
    choose_strip_ends,
    draw_bar,
    draw_interval,
    draw_lines,
    draw_parallel,
    draw_stack,
)


def find(svg: str, tag: str, style: str) -> list[dict[str, str]]:
    """Find elements by tag and class."""
    tree = ElementTree.fromstring(svg)
    return [element.attrib for element in tree.iter(tag) if style in element.get("class", "").split()]


def percent(words: str) -> float:
    assert words.endswith("%")
    return float(words.removesuffix("%"))


def places(attributes: dict[str, str]) -> list[tuple[float, float]]:
    """Read the points of a line."""
    points = [point.split(",") for point in attributes["points"].split()]
    return [(float(x), float(y)) for x, y in points]


def test_lines_stay_within_the_drawing_and_rise_with_their_values() -> None:
    svg = draw_lines([ChartLine([(0, 1.0), (500, 3.0), (1000, 2.0)])], title="loss", x_label="images")
    (line,) = find(svg, "polyline", "line")
    (first, second, third) = places(line)
    assert first[0] < second[0] < third[0]
    assert second[1] < third[1] < first[1], "y goes down in SVG"
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places(line))
    assert second[0] - first[0] == pytest.approx(third[0] - second[0], abs=0.2)


def test_points_that_are_not_finite_are_left_out() -> None:
    svg = draw_lines([ChartLine([(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)])], title="t", x_label="x")
    (line,) = find(svg, "polyline", "line")
    assert len(places(line)) == 2
    assert "nan" not in svg
    assert "inf" not in svg


def test_a_logarithmic_axis_leaves_out_points_without_a_logarithm() -> None:
    svg = draw_lines([ChartLine([(0.0, 0.1), (0.01, 0.5), (0.1, 0.8), (1.0, 1.0)])], title="t", x_label="x", log_x=True)
    (line,) = find(svg, "polyline", "line")
    first, second, third = places(line)
    assert third[0] - second[0] == pytest.approx(second[0] - first[0], abs=0.2)


def test_a_curve_of_many_points_is_reduced_to_a_few_hundred() -> None:
    number = 100_000
    svg = draw_lines([ChartLine([(step, step / number) for step in range(number + 1)])], title="t", x_label="x")
    (line,) = find(svg, "polyline", "line")
    assert 300 < len(places(line)) < 1200
    assert places(line)[-1] == (WIDTH - 14, 10), "it ends where it ended"


def test_text_of_a_drawing_is_escaped() -> None:
    svg = draw_lines([ChartLine([(0, 1)], "a <b> & c")], title='x < "y"', x_label="<x>")
    tree = ElementTree.fromstring(svg)
    assert tree.get("aria-label") == 'x < "y"'
    assert "a <b> & c" in "".join(tree.itertext())


def test_the_main_line_is_drawn_last() -> None:
    lines = [ChartLine([(0, 1), (1, 1)], "best"), ChartLine([(0, 2), (1, 2)], kind="other", dotted=True)]
    axes = [ParallelAxis("rate", [(0, "1e-4"), (1, "1e-2")]), ParallelAxis("loss", [])]
    for svg in (draw_lines(lines, title="t", x_label="x"), draw_parallel(axes, lines, title="t")):
        drawn = [element.get("class") for element in ElementTree.fromstring(svg).iter("polyline")]
        assert drawn == ["line other dotted", "line main"]


def test_parallel_axes_are_separate_and_heights_are_shares() -> None:
    axes = [ParallelAxis(name, [(0, "low"), (1, "high")]) for name in ("a", "optimizer.rate", "loss")]
    svg = draw_parallel(axes, [ChartLine([(0, 0.0), (1, 0.5), (2, 1.0)])], title="t")
    (line,) = find(svg, "polyline", "line")
    (x0, y0), (x1, y1), (x2, y2) = places(line)
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2)
    words = [element.text for element in ElementTree.fromstring(svg).iter("text")]
    assert {"optimizer", "rate"} <= set(words), "a long name goes into two lines"


def test_an_interval_lies_around_its_value_and_the_goal_is_a_tick() -> None:
    svg = draw_interval(MeasuredInterval(0.7, 0.6, 0.8, wanted_low=0.5, holds=True), (0, 1), title="t")
    (interval,) = find(svg, "line", "interval")
    assert (percent(interval["x1"]), percent(interval["x2"])) == (60, 80)
    (goal,) = find(svg, "line", "goal")
    assert percent(goal["x1"]) == 50
    (zone,) = find(svg, "rect", "wanted")
    assert (percent(zone["x"]), percent(zone["width"])) == (50, 50)
    mark = next(element for element in ElementTree.fromstring(svg) if element.tag == "svg")
    assert percent(mark.attrib["x"]) == 70


def test_a_goal_of_two_bounds_and_one_from_above_have_their_zones() -> None:
    between = draw_interval(MeasuredInterval(1.0, wanted_low=0.9, wanted_high=1.1, holds=True), (0, 2), title="t")
    (zone,) = find(between, "rect", "wanted")
    assert (percent(zone["x"]), percent(zone["width"])) == (45, 10)
    assert len(find(between, "line", "goal")) == 2
    assert find(between, "line", "interval") == []
    below = draw_interval(MeasuredInterval(3.0, wanted_high=1.0, holds=False), (0, 4), title="t")
    (zone,) = find(below, "rect", "wanted")
    assert (percent(zone["x"]), percent(zone["width"])) == (0, 25)


def test_marks_differ_by_shape_not_by_colour_alone() -> None:
    shapes = set()
    for holds in (True, False, None):
        tree = ElementTree.fromstring(draw_interval(MeasuredInterval(0.5, holds=holds), (0, 1), title="t"))
        (mark,) = [element for outer in tree.iter("svg") for element in outer if "mark" in element.get("class", "")]
        shapes.add((mark.tag, mark.get("d")))
    assert len(shapes) == 3


@pytest.mark.parametrize(
    ("measured", "at_least", "ends"),
    [
        (MeasuredInterval(0.3, 0.2, 0.4, wanted_low=0.95), 1.0, (0, 1)),
        (MeasuredInterval(-0.2, -0.3, -0.1, wanted_low=0.5), 1.0, (-0.5, 1)),
        (MeasuredInterval(1.0, wanted_high=1.4), None, (0, 2)),
        (MeasuredInterval(0.0), None, (-1, 1)),
        (MeasuredInterval(-500.0, wanted_low=1.0), None, (-600, 200)),
    ],
)
def test_strips_show_zero_everything_measured_and_room_beyond_the_goal(
    measured: MeasuredInterval, at_least: float | None, ends: tuple[float, float]
) -> None:
    low, high = choose_strip_ends(measured, at_least)
    assert low <= 0 <= high
    assert all(low <= number <= high for number in measured.numbers())
    assert (low, high) == pytest.approx(ends)


def test_bars_and_stacks_are_shares_of_the_strip() -> None:
    (bar,) = find(draw_bar(0.25, title="t"), "rect", "bar")
    assert percent(bar["width"]) == 25
    svg = draw_stack({"forward": 3.0, "wait": 1.0}, ["backward", "forward", "wait"], title="t")
    (forward,), (wait,) = (find(svg, "rect", style) for style in ("part1", "part2"))
    assert (percent(forward["x"]), percent(forward["width"])) == (0, 75)
    assert (percent(wait["x"]), percent(wait["width"])) == (75, 25)
