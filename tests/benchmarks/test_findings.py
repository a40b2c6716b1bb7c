from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusionray.benchmarks.findings import Findings, load_keys, write_text
from fusionray.benchmarks.report import build_page
from fusionray.reporting.figures import Figures, MeasuredFigure, write_figures
from tests.support.page_shape import check_page

FOUND = Findings(
    values={"scaling_2": [1.7, 1.9, 2.0], "data_wait_share": [0.03], "ceiling_2": [1.95, 1.97]},
    missing={"gpu_busy": "no GPU"},
    breakdowns={"a loop": {"forward": 60.0, "backward": 40.0}, "another": {"forward": 10.0, "communication": 2.0}},
    notes=["the machine was idle"],
)


def write(folder: Path) -> Figures:
    return write_figures(folder, "bench-train", FOUND.figures(load_keys("train")), FOUND.missing)


def test_goals_are_the_promised_ones() -> None:
    goals = {name: key.goal for name, key in load_keys("train").items() if key.goal}
    least = {name: goal.at_least for name, goal in goals.items() if goal.at_least is not None}
    assert least == {
        "loop_efficiency": 0.97,
        "loader_vs_pillow": 1.5,
        "loader_vs_best": 1.0,
        "loader_object_storage": 3.0,
        "scaling_2": 1.85,
        "vs_plain_recipe": 1.5,
        "gpu_amp_speedup": 2.0,
        "gpu_memory_auto": 0.9,
        "gpu_busy": 0.9,
    }
    most = {name: goal.at_most for name, goal in goals.items() if goal.at_most is not None}
    assert most == {"data_wait_share": 0.02, "checkpoint_step_ratio": 1.3}


def test_medians_are_compared_with_their_goals(tmp_path: Path) -> None:
    figures = write(tmp_path).figures
    assert list(figures) == ["data_wait_share", "scaling_2", "ceiling_2"]
    scaling, wait, ceiling = figures["scaling_2"], figures["data_wait_share"], figures["ceiling_2"]
    assert (scaling.value, scaling.goal, scaling.holds) == (1.9, ">= 1.85", True)
    assert (wait.value, wait.goal, wait.holds) == (0.03, "<= 0.02", False)
    assert (ceiling.goal, ceiling.holds) == (None, None)
    assert ceiling.value == pytest.approx(1.96)


def test_figures_are_written_with_the_reasons_of_those_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path)
    tree = json.loads((tmp_path / "figures.json").read_text())
    assert tree["name"] == "bench-train"
    scaling = MeasuredFigure(value=1.9, unit="x", low=1.7, high=2.0, goal=">= 1.85", goal_low=1.85, holds=True)
    assert tree["figures"]["scaling_2"] == scaling.model_dump()
    assert tree["not_measured"] == {"gpu_busy": "no GPU"}


def test_the_table_is_readable_as_text(tmp_path: Path) -> None:
    lines = write_text(write(tmp_path), FOUND).splitlines()
    assert lines[0].split() == ["key", "measured", "rounds", "goal", "holds"]
    assert lines[1].split() == ["data_wait_share", "0.030", "share", "-", "<=", "0.02", "NO"]
    assert lines[2].split() == ["scaling_2", "1.900", "x", "1.700", "..", "2.000", ">=", "1.85", "yes"]
    assert lines[4] == "gpu_busy         not measured (no GPU)"
    assert lines[1].index("<=") == lines[2].index(">=")


def test_the_report_says_what_the_keys_mean_and_where_the_time_goes(tmp_path: Path) -> None:
    keys = load_keys("train")
    text = build_page("Benchmarks", write(tmp_path), FOUND, keys).write_markdown()
    assert keys["scaling_2"].what in text
    assert "| gpu_busy | not measured (no GPU) |" in text
    assert "|  | forward | backward | communication | total |" in text
    assert "| another | 10.0 | 0.0 | 2.0 | 12.0 |" in text
    assert "the machine was idle" in text


def test_figures_are_drawn_on_their_rounds_and_time_breakdowns_as_shares_of_a_step(tmp_path: Path) -> None:
    page = build_page("Benchmarks", write(tmp_path), FOUND, load_keys("train")).write_html()
    shape = check_page(page)
    assert shape.words_of("scaling_2 1.900 x, rounds 1.700 .. 2.000, goal >= 1.85")
    marks = [page.count(f'class="mark {outcome}"') for outcome in ("holds", "misses", "open")]
    assert marks == [2, 2, 2], "a figure of each kind, and its sample in the legend"
    assert 'class="part0" x="0.00%" width="60.00%"' in page
    assert 'class="part2" x="83.33%" width="16.67%"' in page


def test_a_benchmark_without_time_breakdowns_and_figures_is_a_page_of_reasons(tmp_path: Path) -> None:
    found = Findings(missing=FOUND.missing)
    figures = write_figures(tmp_path, "bench-train", {}, found.missing)
    page = build_page("Benchmarks", figures, found, load_keys("train")).write_html()
    assert "not measured (no GPU)" in page
    assert "<svg" not in page
