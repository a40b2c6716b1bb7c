from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fusionray.evaluation.metric_table import Goal, load_table
from fusionray.evaluation.report.charts import draw_curves, draw_grid, draw_operating_curve
from fusionray.evaluation.report.documents import Report, compose, write_report, write_text
from fusionray.evaluation.report.training_curves import draw_training_curves, find_store
from fusionray.metrics.verification import verify
from fusionray.reporting.figures import Figures, MeasuredFigure, write_figures
from fusionray.reporting.page import PageSection, PageTable
from fusionray.reporting.parts import PageImage
from fusionray.tracking.runs import RunTracker, open_run
from tests.support.page_shape import check_page

FIGURES = {
    "total_seconds": MeasuredFigure(value=12.0, unit="s"),
    "ssim_to_truth": MeasuredFigure(
        value=0.71234, unit="SSIM", low=0.7, high=0.72, goal="> ssim_target (0.500)", goal_low=0.5, holds=True
    ),
    "nearer_to_source": MeasuredFigure(value=0.5, unit="share", goal=">= 0.95", goal_low=0.95, holds=False),
}


def build_report(figures: Figures) -> Report:
    png = draw_grid([torch.zeros(2, 3, 8, 8, dtype=torch.uint8)] * 3)
    return Report(
        "a <model>",
        figures,
        load_table(),
        notes=("one & two",),
        command="fusionray evaluate x",
        listings=[PageTable("by group", ("group", "value"), [("dark", "0.5")], "thirds")],
        blocks=[PageSection("Fused pairs", [PageImage("grid", "Fusions", png, "all of them", ("source", "target"))])],
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_report(tmp_path, build_report(write_figures(tmp_path, "test", FIGURES, {"fid": "no <file>"})))
    return tmp_path


def test_the_page_needs_nothing_beside_it_and_takes_no_text_for_markup(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    check_page(page)
    for words in ("a &lt;model&gt;", "one &amp; two", "no &lt;file&gt;", "&gt;= 0.95", "0.7 .. 0.72", "dark"):
        assert words in page, words
    assert not [words for words in ("<model>", "<file>", "one & two") if words in page]


def test_the_page_goes_from_pictures_to_goals_to_folded_tables(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    positions = [
        page.index(words) for words in ("1 of 2 goals hold", "<img", "Figures and goals", "<details", "<table")
    ]
    assert positions == sorted(positions)


def test_figures_stand_under_their_theme_in_the_tables_order(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    tables = {
        "page": (folder / "report.html").read_text().partition("<details")[2],
        "text": text[text.index("## Identity") :],
    }
    for place in tables.values():
        positions = [place.index(words) for words in ("Identity", "nearer_to_source", "Similarity", "0.7123", "12 s")]
        assert positions == sorted(positions)
    assert "| nearer_to_source | 0.5 share |  | >= 0.95 | NO | fused faces that the evaluator" in text
    assert "![Fusions](grid.png)" in text
    assert (folder / "grid.png").is_file()


def test_figures_with_goals_have_a_row_that_is_read_out_and_says_what_holds(folder: Path) -> None:
    shape = check_page((folder / "report.html").read_text())
    assert shape.words_of("ssim_to_truth 0.7123 SSIM, 95 % interval 0.7 .. 0.72, goal > ssim_target (0.500)")
    assert shape.words_of("nearer_to_source 0.5 share, goal >= 0.95")
    assert not shape.words_of("total_seconds")
    assert (shape.text.count("✓ holds"), shape.text.count("✗ misses")) == (2, 2), "a row and a cell of a table each"


def test_without_goals_the_figures_that_goals_are_made_for_have_rows() -> None:
    free = {"goal": None, "goal_low": None, "holds": None}
    figures = {key: figure.model_copy(update=free) for key, figure in FIGURES.items()}
    shape = check_page(compose(build_report(name_figures(figures))).write_html())
    assert shape.words_of("ssim_to_truth 0.7123")
    assert not shape.words_of("total_seconds")
    assert "goals hold" not in shape.text
    assert "value without a goal" in shape.text


def test_the_legend_explains_intervals_only_where_there_are_any() -> None:
    without = {"nearer_to_source": FIGURES["nearer_to_source"]}
    pages = [compose(build_report(name_figures(figures))).write_html() for figures in (FIGURES, without)]
    legends = [page.partition('class="key note"')[2].partition("</ul>")[0] for page in pages]
    assert ["95 % interval" in legend for legend in legends] == [True, False]


def test_a_report_without_figures_of_that_kind_has_no_empty_frame() -> None:
    report = replace(build_report(name_figures({"total_seconds": FIGURES["total_seconds"]})), blocks=[])
    shape = check_page(compose(report).write_html())
    assert "Main figures" not in shape.text
    assert "svg" not in shape.order


@pytest.mark.parametrize(
    ("goal", "bounds"),
    [
        (Goal(at_least=0.9), (0.9, None)),
        (Goal(at_most=1.4), (None, 1.4)),
        (Goal(at_least=0.9, at_most=1.1), (0.9, 1.1)),
        (Goal(above=("low", "high", "unknown")), (0.6, None)),
    ],
)
def test_a_checked_figure_holds_its_goal_as_numbers(goal: Goal, bounds: tuple[float | None, float | None]) -> None:
    checked = goal.check(MeasuredFigure(value=1.0, unit="x", low=0.9, high=1.1), {"low": 0.4, "high": 0.6})
    assert (checked.goal_low, checked.goal_high) == bounds
    assert (checked.low, checked.high, checked.holds) == (0.9, 1.1, True)


def name_figures(figures: dict[str, MeasuredFigure]) -> Figures:
    return Figures(name="n", machine="m", code_version="c", figures=figures)


def test_the_table_for_the_terminal_says_what_holds() -> None:
    figures = Figures(name="n", machine="m", code_version="c", figures=FIGURES)
    head, *lines = write_text(figures).splitlines()
    assert head.split() == ["key", "value", "95", "%", "interval", "goal", "holds"]
    assert lines[1].split()[:2] == ["ssim_to_truth", "0.7123"]
    assert lines[1].endswith("yes")
    assert lines[2].endswith("NO")


def test_a_figures_file_can_be_read_again(folder: Path) -> None:
    again = Figures.model_validate_json((folder / "figures.json").read_text())
    assert again.figures == FIGURES
    assert again.not_measured == {"fid": "no <file>"}


def test_a_grid_is_enlarged_without_blur_until_it_can_be_seen() -> None:
    columns = [torch.full((2, 3, 32, 32), value, dtype=torch.uint8) for value in (10, 200)]
    with Image.open(io.BytesIO(draw_grid(columns))) as grid:
        pixels = np.asarray(grid)
    assert pixels.shape == (2 * 128, 2 * 128, 3)
    assert set(np.unique(pixels[:, :128])) == {10}
    assert set(np.unique(pixels[:, 128:])) == {200}


def test_the_operating_curve_marks_the_best_threshold() -> None:
    label = np.repeat(np.arange(4), 3)
    embedding = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)
    result = verify(embedding, label)
    svg = draw_operating_curve(result).svg
    assert f"best threshold {result.threshold:.3f}, accuracy {result.accuracy:.3f}" in svg
    assert svg.count('<circle class="dot second"') == 2, "the point, and its sample beside the words"


def test_curves_say_where_they_end_and_empty_ones_are_left_out() -> None:
    (chart,) = draw_curves({"loss": [(0, 1.0), (20_000, 0.5)], "none": []})
    assert chart.caption == "0.5 after 20k images"
    (line,) = re.findall(r'<polyline class="line main" points="([^"]*)"', chart.svg)
    assert len(line.split()) == 2


def describe_training(folder: Path) -> dict[str, dict[str, str]]:
    return {"run": {"name": "fusion", "output": str(folder)}, "tracking": {"experiment": "faces"}}


def test_training_curves_are_read_from_the_store_of_the_training(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracker = RunTracker(uri, open_run(uri, "faces", "fusion", {}))
    for images in (100, 200):
        keys = ("l1_to_truth", "ssim_gap_closed", "ssim_target")
        tracker.log(images, {f"validation_{key}": 1 / images for key in keys} | {"loss_truth": 1.0})
    tracker.log(200, {"validation_mask_mean": 0.5})
    (block,), complaints = draw_training_curves(describe_training(tmp_path), "sqlite:///other.db", load_table())
    titles = [part.title for part in block.parts]  # type: ignore[attr-defined]
    # Not: losses, what goals are never set for, and what has one point.
    assert titles == ["l1_to_truth", "ssim_gap_closed"]
    assert complaints == []


def test_without_a_store_of_the_training_there_are_no_curves(tmp_path: Path) -> None:
    table = load_table()
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    open_run(uri, "faces", "another", {})
    assert draw_training_curves({}, uri, table) == ([], [])
    assert draw_training_curves({"preset": "none"}, uri, table) == ([], []), "a model that was made elsewhere"
    assert draw_training_curves(describe_training(tmp_path), uri, table) == ([], [])
    assert draw_training_curves(describe_training(tmp_path / "gone"), uri, table) == ([], [])
    # A server that is not the evaluation's own is not waited for.
    remote = describe_training(tmp_path) | {"tracking": {"uri": "http://192.0.2.1", "experiment": "faces"}}
    assert draw_training_curves(remote, uri, table) == ([], [])


@pytest.mark.parametrize("recorded", ["http://server:5000", "http://ann:secret@server:5000"])
def test_a_server_is_that_of_the_training_whatever_its_password(recorded: str) -> None:
    run, uri = {"name": "fusion", "output": "/gone"}, "http://ben:other@server:5000"
    assert find_store(run, {"uri": recorded}, uri) == uri
    assert find_store(run, {"uri": "http://another:5000"}, uri) is None


def test_an_unreadable_store_is_a_note_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 100)
    blocks, (complaint,) = draw_training_curves(describe_training(tmp_path), "sqlite:///other.db", load_table())
    assert blocks == []
    assert complaint.startswith("The curves of the training are left out: ")
    assert "\n" not in complaint
