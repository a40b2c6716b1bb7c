from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fusionray.evaluation.report.documents import Listing, Picture, Report, write_report, write_text
from fusionray.evaluation.report.drawing import draw_curves, draw_grid, draw_operating_curve
from fusionray.evaluation.report.figures import Figure, Figures, write_figures
from fusionray.evaluation.report.goals import load_table
from fusionray.metrics.verification import verify

FIGURES = {
    "total_seconds": Figure(value=12.0, unit="s"),
    "ssim_to_truth": Figure(value=0.71234, unit="SSIM", low=0.7, high=0.72, goal="> ssim_target (0.500)", holds=True),
    "nearer_to_source": Figure(value=0.5, unit="share", goal=">= 0.95", holds=False),
}


def build_report(figures: Figures) -> Report:
    png = draw_grid([torch.zeros(2, 3, 8, 8, dtype=torch.uint8)] * 3)
    return Report(
        "a <model>",
        figures,
        load_table(),
        notes=("one & two",),
        command="fusionray evaluate x",
        listings=[Listing("by group", ("group", "value"), [("dark", "0.5")], "thirds")],
        pictures=[Picture("grid", "Fusions", "source | target", png)],
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_report(tmp_path, build_report(write_figures(tmp_path, "test", FIGURES, {"fid": "no <file>"})))
    return tmp_path


def test_the_page_needs_nothing_beside_it_and_takes_no_text_for_markup(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "src='data:image/png;base64," in page
    assert "http" not in page
    for words in ("a &lt;model&gt;", "one &amp; two", "no &lt;file&gt;", "&gt;= 0.95", "0.7 .. 0.72", "dark"):
        assert words in page, words
    assert not [words for words in ("<model>", "<file>", "one & two") if words in page]


def test_figures_stand_under_their_theme_in_the_tables_order(folder: Path) -> None:
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    for place in (page, text):
        positions = [place.index(words) for words in ("Identity", "nearer_to_source", "Likeness", "0.7123", "12 s")]
        assert positions == sorted(positions)
    assert "| nearer_to_source | 0.5 share |  | >= 0.95 | NO | fused faces that the judge" in text
    assert "![Fusions](grid.png)" in text
    assert (folder / "grid.png").is_file()


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


def test_curves_are_drawn_as_png() -> None:
    label = np.repeat(np.arange(4), 3)
    embedding = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)
    for png in (draw_curves({"loss": [(0, 1.0), (10, 0.5)]}), draw_operating_curve(verify(embedding, label))):
        with Image.open(io.BytesIO(png)) as picture:
            assert picture.format == "PNG"
            assert picture.width > 300
