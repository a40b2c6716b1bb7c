"""What the demo leaves behind, without the training: its report on small material."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fusionray.evaluation.metric_table import load_table
from fusionray.evaluation.report.documents import Report
from fusionray.evaluation.report.examples import rank_pairs, show_examples
from fusionray.faces.image_files.decode import encode_image
from fusionray.reporting.figures import Figures, MeasuredFigure
from fusionray.tracking.runs import RunTracker, open_run
from jobs.demo import report
from tests.support.page_shape import check_page
from tests.support.pictures import draw_person

PAIRS = 12


@dataclass(frozen=True)
class Trained:
    """What the report asks of a training."""

    tracking_uri: str
    tracking_run: str


def build_evaluated() -> Report:
    """Build the report of an evaluation of rendered people, whose fused faces are their targets."""
    people = torch.from_numpy(np.stack([draw_person(seed, 64) for seed in range(PAIRS)])).permute(0, 3, 1, 2)
    scores = {
        "ssim_to_truth": np.linspace(0.5, 0.9, PAIRS, dtype=np.float32),
        "ssim_target": np.full(PAIRS, 0.6, np.float32),
        "cosine_to_source": np.linspace(0.1, 0.8, PAIRS, dtype=np.float32),
        "retrieval_top1": (np.arange(PAIRS) > 5).astype(np.float32),
    }

    def fuse(rows: np.ndarray) -> list[torch.Tensor]:
        return [people[rows], people.flip(0)[rows], people.flip(0)[rows], people[rows]]

    figures = Figures(name="evaluate", machine="m", code_version="c", figures={})
    return Report(
        "tiny on held-out people", figures, load_table(), blocks=list(show_examples(rank_pairs(scores, fuse)))
    )


def test_the_report_shows_pairs_the_answer_losses_and_goals_before_its_tables(tmp_path: Path) -> None:
    for seed, name in enumerate(("source", "target", "fused", "content", "style", "stylised")):
        (tmp_path / f"{name}.png").write_bytes(encode_image(draw_person(seed, 64)))
    (tmp_path / "film").mkdir()
    (tmp_path / "film" / "strip.png").write_bytes(encode_image(draw_person(5, 64)))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = open_run(uri, "fusionray", "fusion", {})
    tracker = RunTracker(uri, run)
    for images in (0, 500, 1000):
        tracker.log(images, {"loss_truth": 1 / (1 + images), "loss_identity": 0.5})
    evaluated = build_evaluated()
    figures = {
        "nearer_to_source": MeasuredFigure(
            value=0.93, unit="share", low=0.9, high=0.96, goal=">= 0.9", goal_low=0.9, holds=True
        ),
        "total_seconds": MeasuredFigure(value=700, unit="s"),
    }
    report(tmp_path, evaluated, replace_figures(evaluated.figures, figures), Trained(uri, run))
    page = (tmp_path / "report.html").read_text()
    shape = check_page(page)
    assert "fusionray demo" in shape.text
    places = [page.index(words) for words in ("1 of 1 goals hold", "Examples", "Best, median", "Figures and goals")]
    places += [
        page.index(words)
        for words in (
            "A film, before and after",
            "A picture in the style",
            "The answer over HTTP",
            "Losses over",
            "<table",
        )
    ]
    assert places == sorted(places)
    assert len(shape.pictures) == 1 + 3 * 3 + 1 + 3 + 3
    assert shape.words_of("truth over the images seen")
    assert not shape.words_of("mask over the images seen"), "what was not logged has no empty frame"
    assert "Rank 1 of 12: SSIM to the true fusion 0.900 (+0.300 over the target), cosine to source 0.800" in shape.text
    assert {"grid.png", "best-1.png", "fused.png", "report.md"} <= {path.name for path in tmp_path.iterdir()}


def replace_figures(figures: Figures, measured: dict[str, MeasuredFigure]) -> Figures:
    return figures.model_copy(update={"figures": measured})
