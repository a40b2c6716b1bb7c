"""A family that the platform has never heard of is exported and evaluated by what it says itself."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fusionray.bundle.bundle import Bundle, read_bundle
from fusionray.cli import main
from fusionray.errors import ConfigInvalid, ShardMismatch
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.evaluate import evaluate
from fusionray.recipes import registry
from fusionray.recipes.registry import register
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.tasks import open_runner
from tests.support.blend_family import BlendFamily, save_blend
from tests.support.tiny_fusion import SIZE, save_encoder
from tests.support.tiny_world import write_world


@pytest.fixture(scope="module")
def family() -> Iterator[BlendFamily]:
    with pytest.MonkeyPatch.context() as patch:
        # A family that is always there registers once: it must not be lost with the one of this module.
        registry.import_families()
        patch.setattr(registry, "families", dict(registry.families))
        one = BlendFamily()
        register(one)
        yield one


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, family: BlendFamily) -> Path:
    """Shards, a run that mixes in equal parts as it should, and one that keeps too much of the first picture."""
    folder = tmp_path_factory.mktemp("delivery")
    write_world(folder / "shards")
    save_blend(folder / "run", shards=str(folder / "shards"))
    save_blend(folder / "lazy", shards=str(folder / "shards"), share=0.25)
    return folder


@pytest.fixture(scope="module")
def bundle(world: Path) -> Bundle:
    command = ["export", str(world / "run"), "--output", str(world / "bundle"), "--precision", "fp32,fp16"]
    assert main([*command, "licence=MIT"]) == 0
    return read_bundle(world / "bundle")


def test_a_bundle_is_what_the_family_says_and_passes_the_parity_gate(bundle: Bundle) -> None:
    described = bundle.description
    assert (described.task, described.name, described.size, described.licence) == ("blend", "mix", SIZE, "MIT")
    assert described.parity is not None
    assert described.parity.largest_difference < 1e-5
    assert described.lineage.config["recipe"] == {"name": "blend"}
    assert described.variants["fp16"].measured_on == "held-out crops of its shards"
    assert 0 < described.variants["fp16"].largest_difference < 0.01


def test_the_bundle_runs_with_inputs_in_the_order_of_the_module(bundle: Bundle) -> None:
    runner = open_runner(bundle, RuntimeConfig(providers=(CPU,), threads=1))
    assert runner.inputs == ("style_of", "content_of")
    first, second = (np.full((SIZE, SIZE, 3), level, np.uint8) for level in (40, 90))
    assert np.unique(runner.run({"style_of": first, "content_of": second})).tolist() == [65]


def test_a_failed_export_writes_nothing(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["export", str(world / "run"), "--output", str(tmp_path / "bundle")]
    assert main([*command, "tolerance=1e-12"]) == 1
    assert "ONNX and torch differ by" in capsys.readouterr().err
    monkeypatch.setattr(BlendFamily, "pair_crops", None)
    assert main([*command, "--precision", "fp16"]) == 1
    assert "no inputs to measure variants on; export fp32 only" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_without_an_export_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_encoder(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "bundle")]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "models of the recipe identity cannot be exported" in line


def measure(world: Path, model: str, output: Path, **changes: object) -> dict[str, float]:
    settings = {"model": str(world / model), "data": str(world / "shards"), "output": str(output), "pairs": 8}
    result = evaluate(EvaluateConfig.model_validate({**settings, "bootstrap_rounds": 20, "batch_size": 3, **changes}))
    return {name: figure.value for name, figure in result.figures.figures.items()}


def test_a_run_is_measured_against_the_reference_and_the_unchanged_picture(world: Path, tmp_path: Path) -> None:
    found = measure(world, "run", tmp_path / "run", goals="paired")
    assert found["ssim"] > 0.999
    assert found["l1"] < 0.5 < found["l1_first"]
    assert found["psnr"] > 50 > found["psnr_first"]
    assert found["held_out_draws"] == 8
    lazy = measure(world, "lazy", tmp_path / "lazy")
    assert found["l1"] < lazy["l1"] < lazy["l1_first"] == found["l1_first"]


def test_a_bundle_scores_as_its_run_does(world: Path, bundle: Bundle, tmp_path: Path) -> None:
    run, exported = measure(world, "run", tmp_path / "run"), measure(world, "bundle", tmp_path / "bundle")
    assert exported == pytest.approx(run, abs=0.3)


def test_the_report_has_figures_goals_draws_and_examples(world: Path, tmp_path: Path) -> None:
    measure(world, "run", tmp_path, goals="paired")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["figures"]["ssim"]["holds"] is True
    assert figures["figures"]["ssim"]["low"] <= figures["figures"]["ssim"]["value"]
    assert figures["not_measured"] == {}
    with (tmp_path / "pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert all(row["picture_0"] != row["picture_1"] for row in rows)
    page = (tmp_path / "report.html").read_text()
    assert "mix on held-out pictures" in page
    assert {"grid.png", "best-1.png", "median-1.png", "worst-1.png", "report.md"} <= {
        path.name for path in tmp_path.iterdir()
    }


def test_a_family_may_declare_its_own_table(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"theme": "mixing", "unit": "levels", "description": "error", "paired": {"at_most": 1.0}}
    table = {"themes": {"mixing": "Is it mixed?"}, "metrics": {"l1": key, "speed": {**key, "unit": "ms"}}}
    monkeypatch.setattr(BlendFamily, "metric_table", table)
    assert set(measure(world, "run", tmp_path, goals="paired")) == {"l1"}
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["figures"]["l1"]["goal"] == "<= 1"
    assert figures["not_measured"] == {"speed": "not measured for pictures"}


def test_settings_of_face_fusion_have_no_effect_and_a_warning_says_so(world: Path, tmp_path: Path) -> None:
    words = r"face_fusion\.gallery_images, face_fusion\.evaluator, face_fusion\.clips\.number: only for models that"
    unused = {"evaluator": "somebody", "gallery_images": 2, "clips": {"number": 3}}
    with pytest.warns(UserWarning, match=words):
        measure(world, "run", tmp_path, face_fusion=unused)


def test_models_that_cannot_be_evaluated_are_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_encoder(tmp_path / "encoder")
    with pytest.raises(ConfigInvalid, match="models of the recipe identity cannot be evaluated"):
        measure(world, str(tmp_path / "encoder"), tmp_path / "report")
    write_world(tmp_path / "large", size=64, pictures=1)
    with pytest.raises(ShardMismatch, match="64 px"):
        measure(world, "run", tmp_path / "report", data=str(tmp_path / "large"))
    monkeypatch.delitem(registry.families, "blend")
    with pytest.raises(ConfigInvalid, match=r"no recipe 'blend'; there are: adain, attributes, .*identity"):
        measure(world, "run", tmp_path / "report")
