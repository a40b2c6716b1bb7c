from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fusionray.errors import CheckpointMissing, FusionRayError, InputMissing, ShardMismatch
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.evaluate import EvaluateResult, evaluate
from fusionray.tracking.store import make_client
from tests.evaluation.materials import Brightest, draw_frames, save_script, write_pictures
from tests.support.page_shape import check_page
from tests.support.tiny_fusion import SIZE, save_encoder
from tests.support.tiny_shards import write_tiny_shards
from tests.support.tiny_world import PEOPLE, save_fusion, save_reader, write_world

PAIRS = 20


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with every split, a fusion run, and the runs of two evaluators."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_world(folder / "shards")
    save_fusion(folder / "fusion")
    save_encoder(folder / "evaluator")
    save_reader(folder / "reader")
    return folder


def configure(world: Path, face_fusion: dict[str, Any] | None = None, **changes: Any) -> EvaluateConfig:
    settings: dict[str, Any] = {
        "model": str(world / "fusion"),
        "data": str(world / "shards"),
        "output": str(world / "out"),
        "face_fusion": {
            "evaluator": str(world / "evaluator"),
            "attributes": str(world / "reader"),
            "gallery_images": 2,
            "clips": {"number": 1, "frames": 3},
            **(face_fusion or {}),
        },
        "pairs": PAIRS,
        "bootstrap_rounds": 10,
        "batch_size": 8,
        "goals": "unpaired",
        "workers": {"num_workers": 2, "cpus_per_worker": 0.5},
    }
    return EvaluateConfig.model_validate({**settings, **changes})


@pytest.fixture(scope="module")
def result(world: Path, ray_session: None) -> EvaluateResult:
    """The evaluation of an untrained model by untrained evaluators, on two workers."""
    return evaluate(configure(world))


@pytest.mark.slow(seconds=32)
def test_every_key_is_measured_or_says_why_not(result: EvaluateResult) -> None:
    figures = result.figures
    # Few pairs have no distances of distributions, and steps of the sources' own skin are for photographs.
    unmeasured = {"fid", "fid_truth", "kid", "kid_truth", "seam_step_source", "skin_difference_source"}
    assert figures.not_measured.keys() == unmeasured | {
        key for key in figures.not_measured if key.startswith("fairness")
    }
    assert figures.figures["held_out_pairs"].value == PAIRS
    assert figures.figures["held_out_people"].value == PEOPLE["test"]
    low, high = figures.figures["ssim_to_truth"].low, figures.figures["ssim_to_truth"].high
    assert low is not None
    assert high is not None
    assert low <= figures.figures["ssim_to_truth"].value <= high
    assert figures.figures["nearer_to_source"].goal == ">= 0.95"
    assert json.loads((Path(result.folder) / "figures.json").read_text())["figures"].keys() == figures.figures.keys()


@pytest.mark.slow(seconds=1)
def test_the_list_of_pairs_holds_their_rows_and_scores(world: Path, result: EvaluateResult) -> None:
    with (Path(result.folder) / "pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (Path(result.folder) / "gallery.csv").open() as file:
        enrolled = {(row["file"], row["row"]) for row in csv.DictReader(file)}
    assert len(rows) == PAIRS
    assert {row["source_file"] for row in rows} == {"shard-test.parquet"}
    assert all(row["source_person"] != row["target_person"] for row in rows)
    assert not enrolled & {(row[f"{role}_file"], row[f"{role}_row"]) for row in rows for role in ("source", "target")}
    mean = sum(float(row["ssim_to_truth"]) for row in rows) / PAIRS
    assert mean == pytest.approx(result.figures.figures["ssim_to_truth"].value, abs=1e-4)


@pytest.mark.slow(seconds=1)
def test_the_report_holds_grids_goals_and_the_command(result: EvaluateResult) -> None:
    page = (Path(result.folder) / "report.html").read_text()
    check_page(page)
    assert page.count("data:image/png;base64,") == 1 + 3 * 3  # the grid, and three pairs of each kind
    for words in ("ssim_gap_closed", "&gt;= 0.2", "By group", "fusionray evaluate", "pairs=20", "Is it the source"):
        assert words in page, words
    with Image.open(Path(result.folder) / "grid.png") as grid:
        assert grid.width == 4 * 128
        assert grid.height == 6 * 128
    assert "| ssim_to_truth |" in (Path(result.folder) / "report.md").read_text()


@pytest.mark.slow(seconds=1)
def test_the_evaluation_is_logged_once_to_the_tracker(world: Path, result: EvaluateResult) -> None:
    client = make_client(f"sqlite:///{world}/out/mlflow.db")
    experiment = client.get_experiment_by_name("fusionray")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "evaluate tiny"
    assert run.data.metrics["ssim_to_truth"] == pytest.approx(result.figures.figures["ssim_to_truth"].value)
    assert run.data.params["seed"] == "0"
    assert {entry.path for entry in client.list_artifacts(run.info.run_id)} >= {"report.html", "pairs.csv"}


@pytest.mark.slow(seconds=38)
def test_a_second_call_gives_the_same_figures_on_another_number_of_workers(world: Path, result: EvaluateResult) -> None:
    again = evaluate(configure(world, output=str(world / "again"), workers={"num_workers": 1}, batch_size=5))
    for key, figure in result.figures.figures.items():
        assert again.figures.figures[key].value == pytest.approx(figure.value, rel=1e-3, abs=1e-4), key


@pytest.mark.slow(seconds=13)
@pytest.mark.usefixtures("ray_session")
def test_photographs_are_evaluated_with_the_files_of_the_user(world: Path, tmp_path: Path) -> None:
    write_world(tmp_path / "shards", photographs=True)
    save_script(Brightest(), tmp_path / "brightest.pt")
    write_pictures(tmp_path / "clip", draw_frames(3))
    result = evaluate(
        configure(
            world,
            data=str(tmp_path / "shards"),
            output=str(tmp_path / "out"),
            face_fusion={
                "features": {"file": str(tmp_path / "brightest.pt")},
                "clips": {"files": [str(tmp_path / "clip")]},
            },
            bootstrap_rounds=0,
        )
    )
    measured = result.figures.figures.keys()
    wanted = {"retrieval_top1", "cosine_to_source", "verification_auc", "landmark_distance", "fid", "kid", "flicker"}
    assert wanted | {"warp_error", "warp_error_target", "landmark_acceleration_target"} <= measured
    assert not [key for key in measured if key.startswith(("ssim", "pose", "fairness")) or "truth" in key]
    assert "photographs" in result.figures.not_measured["ssim_to_truth"]
    assert "recorded clips" in result.figures.not_measured["flicker_truth"]
    assert result.figures.figures["flicker"].low is None
    page = (Path(result.folder) / "report.html").read_text()
    assert "brightest.pt, sha256 " in page
    with Image.open(Path(result.folder) / "worst-3.png") as grid:
        assert grid.width == 3 * 128  # there is no true fusion to show


@pytest.mark.usefixtures("ray_session")
def test_an_error_of_a_worker_is_one_line(world: Path, tmp_path: Path) -> None:
    clip = write_pictures(tmp_path / "clip", [np.full((64, 64, 3), 90, np.uint8)] * 3)
    clips = {"number": 0, "files": [str(clip)]}
    with pytest.raises(InputMissing, match="shows a face in 0 frames") as refusal:
        evaluate(configure(world, output=str(tmp_path / "out"), face_fusion={"clips": clips}))
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out" / "figures.json").exists()


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"face_fusion.evaluator": "{fusion}"}, ValueError, "is the encoder that supervised"),
        ({"model": "{none}"}, CheckpointMissing, "no such checkpoint"),
        ({"data": "{small}"}, ShardMismatch, "16 px crops"),
        ({"data": "{old}"}, ShardMismatch, "test split has 0 people"),
        ({"face_fusion.evaluator": "{reader}"}, FusionRayError, "holds no identity encoder"),
        ({"face_fusion.compare_size": "33"}, ValueError, "not reduced to it by a whole number"),
    ],
)
def test_invalid_evaluations_are_refused_in_one_line(
    world: Path, tmp_path: Path, changes: dict[str, str], kind: type[Exception], words: str
) -> None:
    write_tiny_shards(tmp_path / "small", test_people=2)
    write_tiny_shards(tmp_path / "old", size=SIZE)
    places = {"small": tmp_path / "small", "old": tmp_path / "old", "none": tmp_path / "none"}
    places |= {name: world / name for name in ("fusion", "reader")}
    ((key, value),) = changes.items()
    section, _, name = key.rpartition(".")
    change = {name: value.format(**places)}
    config = configure(world, **({section: change} if section else change))
    with pytest.raises(kind, match=words) as refusal:
        evaluate(config)
    assert "\n" not in str(refusal.value)
