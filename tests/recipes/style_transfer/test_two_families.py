"""The platform trains, exports, evaluates and tunes models of two families by the same calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusionray.bundle.bundle import Bundle
from fusionray.checkpoint.info import find_checkpoint, read_info
from fusionray.config import validate
from fusionray.errors import ConfigInvalid
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.evaluate import evaluate
from fusionray.export.export import ExportConfig, export
from fusionray.recipes.registry import build_recipe
from fusionray.recipes.style_transfer.encoder_recipe import Pictures
from fusionray.training.config import TrainConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.train import train
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.driver import tune
from fusionray.types import Batch
from tests.support import tiny_fusion, tiny_style
from tests.support.tiny_style import build_config, build_encoder_config, draw_pairs, start_engine, write_checkpoint

CPU = torch.device("cpu")


def build_face_fusion(folder: Path) -> tuple[TrainConfig, dict[str, Any], Batch]:
    """Return the settings of a small fusion, what it depends on, and a batch."""
    tiny_fusion.save_encoder(folder / "encoder")
    recipe = tiny_fusion.build_config(identity_encoder=str(folder / "encoder")).model_dump(mode="json")
    config = build_config(recipe)
    key = "recipe.identity_encoder"
    loaded = {key: config.family.load_dependency(key, find_checkpoint(str(folder / "encoder")))}
    return config, loaded, tiny_fusion.build_pairs(4)


def build_style_transfer(folder: Path) -> tuple[TrainConfig, dict[str, Any], Batch]:
    """Return the same of style transfer."""
    del folder
    return build_config(), {"recipe.perceptual": tiny_style.draw_perceptual()}, draw_pairs(4)


@pytest.mark.slow(seconds=26)
def test_both_are_trained_and_exported_by_the_same_calls(tmp_path: Path) -> None:
    exported: list[Bundle] = []
    for build in (build_face_fusion, build_style_transfer):
        folder = tmp_path / build.__name__
        config, dependencies, batch = build(folder)
        recipe = build_recipe(config, config.dataset_info(num_people=0, synthetic=True), dependencies)
        engine = Engine(recipe, config.engine, total_images=100, device=CPU)
        reports = [engine.step(batch) for _ in range(3)]
        assert all(np.isfinite(float(loss)) for report in reports for loss in report.losses.values())
        run = write_checkpoint(engine, config, folder / "run")
        exported.append(export(ExportConfig(checkpoint=run, output=str(folder / "bundle"))))
    assert [bundle.description.task for bundle in exported] == ["face_fusion", "style_transfer"]
    for bundle in exported:
        assert bundle.description.parity is not None
        assert bundle.description.parity.largest_difference < 1e-4


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    tiny_style.write_picture_shards(folder, 12)
    return folder


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = build_encoder_config()
    engine = start_engine(config)
    engine.step(Pictures(draw_pairs(4).style))
    return write_checkpoint(engine, config, tmp_path_factory.mktemp("evaluator"))


@pytest.mark.slow(seconds=20)
def test_a_run_and_its_bundle_are_scored_alike_beside_doing_nothing(
    style_folder: Path, shards: Path, evaluator: str, tmp_path: Path
) -> None:
    found = []
    for name in ("run", "bundle"):
        config = EvaluateConfig(
            model=str(style_folder / name),
            data=str(shards),
            output=str(tmp_path / name),
            evaluator=evaluator,
            bootstrap_rounds=10,
            goals="unpaired",
        )
        result = evaluate(config)
        found.append({key: figure.value for key, figure in result.figures.figures.items()})
        assert result.figures.figures["style_loss_ratio"].goal is not None
    run, bundle = found
    assert bundle == pytest.approx(run, abs=0.02)
    assert run["held_out_draws"] == 24
    assert run["style_loss_ratio"] == pytest.approx(run["style_loss"] / run["style_loss_content"], rel=1e-5)
    assert run["content_ssim"] > run["content_ssim_style"]
    assert run["style_loss_colours"] < run["style_loss_content"]
    assert "style" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_an_encoder_alone_has_no_evaluation(shards: Path, evaluator: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="cannot be evaluated on their own"):
        evaluate(EvaluateConfig(model=evaluator, data=str(shards), output=str(tmp_path / "out")))


@pytest.mark.slow(seconds=120)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_an_encoder_is_trained_first_and_a_search_needs_no_change(shards: Path, tmp_path: Path) -> None:
    encoder_preset = "preset:style-encoder-tiny"
    tree: dict[str, Any] = {
        "data": {"shards": str(shards), "size": tiny_style.SIZE, "shuffle_buffer_rows": 16, "validation_images": 24},
        "recipe": {"name": "style_transfer", "network": tiny_style.NETWORK, "perceptual": encoder_preset},
        "engine": {"global_batch": 4, "precision": "fp32"},
        "budget": {
            "images": 48,
            "checkpoint_every_images": 24,
            "log_every_images": 24,
            "validate_every_images": 24,
        },
        "workers": {"cpus_per_worker": 0.5, "threads": 1, "bind": False, "warm_spares": False},
    }
    config = validate(TrainConfig, {**tree, "run": {"name": "style", "output": str(tmp_path)}}, "tests")
    result = train(config)
    assert result.images_seen == 48
    assert "validation_style_loss_ratio" in result.metrics
    # Its rows show no people, so the encoder learns without labels.
    assert read_info(find_checkpoint(str(tmp_path / "style-encoder-tiny"))).num_people == 0
    best = tune(
        TuneConfig(
            name="search",
            output=str(tmp_path),
            train={**tree, "recipe": {**tree["recipe"], "perceptual": str(tmp_path / "style-encoder-tiny")}},
            space={"recipe.weights.style": {"choice": [4.0, 10.0]}},
            search="random",
            trials=2,
            metric="validation_style_loss",
            mode="min",
        )
    ).best
    assert best.status == "finished"
