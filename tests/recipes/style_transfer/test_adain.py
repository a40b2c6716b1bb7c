"""AdaIN learns beside the other recipe, is evaluated as its baseline, and is not exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fusionray.checkpoint.info import find_checkpoint
from fusionray.config import validate
from fusionray.errors import ConfigInvalid
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.evaluate import evaluate
from fusionray.export.export import ExportConfig, export
from fusionray.nets.adain import AdainDecoder, AdainNetwork, adapt_features
from fusionray.nets.pixels import to_float
from fusionray.recipes.registry import find_family
from fusionray.recipes.style_transfer.adain_recipe import AdainRecipe
from fusionray.recipes.style_transfer.encoder_recipe import Pictures
from fusionray.recipes.style_transfer.perceptual import PerceptualState, features_of
from fusionray.training.config import TrainConfig
from fusionray.training.engine.engine import Engine
from tests.support.tiny_style import (
    SIZE,
    build_config,
    build_encoder_config,
    draw_pairs,
    draw_perceptual,
    start_engine,
    write_checkpoint,
    write_picture_shards,
)
from tests.support.vgg_files import draw_vgg, write_safetensors


def build_adain(**sections: Any) -> TrainConfig:
    return build_config({"name": "adain", "optimizer": {"base_lr": 1e-2}}, **sections)


@pytest.fixture(scope="module")
def trained() -> Engine:
    engine = start_engine(build_adain(), batch=8)
    for _ in range(60):
        engine.step(draw_pairs(8))
    return engine


def test_features_get_the_statistics_of_the_style_and_keep_their_places() -> None:
    content, style = torch.randn(2, 5, 6, 7) * 3 + 1, torch.randn(2, 5, 4, 4) - 2
    adapted = adapt_features(content, style)
    torch.testing.assert_close(adapted.mean(dim=(2, 3)), style.mean(dim=(2, 3)), atol=1e-4, rtol=1e-3)
    deviations = (part.std(dim=(2, 3), correction=0) for part in (adapted, style))
    torch.testing.assert_close(next(deviations), next(deviations), atol=1e-3, rtol=1e-3)
    assert torch.equal(adapted.flatten(2).argmax(dim=2), content.flatten(2).argmax(dim=2))
    torch.testing.assert_close(adapt_features(content, content), content, atol=1e-4, rtol=1e-4)


def test_a_decoder_mirrors_its_encoder() -> None:
    decoder = AdainDecoder([6, 8, 10, 12])
    assert decoder.stride == 8
    made = decoder(torch.randn(2, 12, 4, 5))
    assert made.shape == (2, 3, 32, 40)
    assert made.abs().max() <= 1


def test_training_lowers_both_losses_and_only_the_decoder_learns(trained: Engine) -> None:
    before, pairs = start_engine(build_adain(), batch=8), draw_pairs(8)
    first, last = (engine.step(pairs).losses for engine in (before, trained))
    assert set(first) == {"content", "style"}
    for name in first:
        assert float(last[name]) < 0.8 * float(first[name]), name
    for name, tensor in draw_perceptual().weights.items():
        assert torch.equal(trained.recipe.frozen["perceptual"].state_dict()[name], tensor)
    recipe = trained.recipe
    assert isinstance(recipe, AdainRecipe)
    measured = (
        engine.recipe.summarise(engine.recipe.measure(engine.recipe.networks, pairs)) for engine in (before, trained)
    )
    untrained, learned = (found["validation_style_loss_ratio"] for found in measured)
    assert learned < 0.9 * untrained
    shown = recipe.preview(recipe.networks, pairs)
    assert shown.shape == (8, 3, 3, SIZE, SIZE)


def test_a_checkpoint_gives_the_model_and_no_bundle(trained: Engine, tmp_path: Path) -> None:
    run = write_checkpoint(trained, build_adain(), tmp_path / "run")
    model = find_family("adain").load_model(find_checkpoint(run))
    assert isinstance(model, AdainNetwork)
    style, content = (to_float(part) for part in (draw_pairs(3).style, draw_pairs(3).content))
    perceptual = trained.recipe.frozen["perceptual"]
    wanted = adapt_features(features_of(perceptual, content)[-1], features_of(perceptual, style)[-1])
    torch.testing.assert_close(model(style, content), trained.ema_networks["decoder"](wanted))
    with pytest.raises(ConfigInvalid, match="models of the recipe adain cannot be exported"):
        export(ExportConfig(checkpoint=run, output=str(tmp_path / "bundle")))


def test_an_evaluation_scores_it_beside_the_model(trained: Engine, tmp_path: Path) -> None:
    write_picture_shards(tmp_path / "shards", 6)
    encoder_config = build_encoder_config()
    encoder = start_engine(encoder_config)
    encoder.step(Pictures(draw_pairs(4).style))
    settings = {
        "data": str(tmp_path / "shards"),
        "evaluator": write_checkpoint(encoder, encoder_config, tmp_path / "evaluator"),
        "bootstrap_rounds": 0,
    }
    adain = write_checkpoint(trained, build_adain(), tmp_path / "adain")
    style = write_checkpoint(start_engine(build_config()), build_config(), tmp_path / "style")

    def measure(name: str, **places: str) -> dict[str, Any]:
        config = validate(EvaluateConfig, {**settings, "output": str(tmp_path / name), **places}, "tests")
        return {key: figure.value for key, figure in evaluate(config).figures.figures.items()}

    alone = measure("alone", model=adain)
    beside = measure("beside", model=style, baseline=adain)
    for name in ("content_ssim", "content_loss", "style_loss"):
        assert beside[f"{name}_baseline"] == pytest.approx(alone[name], rel=1e-5)
        assert beside[name] != pytest.approx(alone[name], rel=1e-3)
    report = (tmp_path / "beside" / "report.html").read_text(encoding="utf-8")
    assert "style, content, output, baseline" in report
    told = f"of the recipe adain, trained 0 s on {trained.images_seen} images; the model, of the recipe style_transfer,"
    assert told in report
    assert "content_ssim_baseline" in (tmp_path / "beside" / "pairs.csv").read_text(encoding="utf-8")
    assert "trained on other shards than the model" not in report
    other = write_checkpoint(encoder, encoder_config, tmp_path / "other")
    with pytest.raises(ConfigInvalid, match="cannot be evaluated on their own"):
        measure("wrong", model=adain, baseline=other)
    small = build_adain(data={"shards": "none", "size": 16})
    with pytest.raises(ConfigInvalid, match=r"baseline=.*/small: is of the recipe adain at 16 px"):
        measure("wrong", model=adain, baseline=write_checkpoint(trained, small, tmp_path / "small"))


def test_a_vgg_supervises_and_is_found_again(tmp_path: Path) -> None:
    vgg = PerceptualState("vgg", {}, draw_vgg())
    config = build_adain()
    recipe = find_family("adain").build(config.recipe, None, {"recipe.perceptual": vgg})  # type: ignore[arg-type]
    engine = Engine(recipe, config.engine, total_images=100, device=torch.device("cpu"))
    engine.step(draw_pairs(4))
    checkpoint = find_checkpoint(write_checkpoint(engine, config, tmp_path / "run"))
    model = find_family("adain").load_model(checkpoint)
    pictures = [to_float(part) for part in (draw_pairs(2).style, draw_pairs(2).content)]
    torch.testing.assert_close(model(*pictures), recipe.build_model(engine.ema_networks)(*pictures))
    write_safetensors(tmp_path / "vgg.safetensors", draw_vgg())
    with pytest.raises(ValueError, match="is the network that supervised"):
        find_family("adain").check_evaluator(str(tmp_path / "vgg.safetensors"), checkpoint)
    # It is refused, too, if it supervised the baseline alone.
    write_picture_shards(tmp_path / "shards", 6)
    settings = {
        "model": write_checkpoint(start_engine(build_config()), build_config(), tmp_path / "style"),
        "baseline": str(tmp_path / "run"),
        "evaluator": str(tmp_path / "vgg.safetensors"),
        "data": str(tmp_path / "shards"),
        "output": str(tmp_path / "output"),
    }
    with pytest.raises(ValueError, match=r"is the network that supervised .*/run/"):
        evaluate(validate(EvaluateConfig, settings, "tests"))


def test_sizes_that_cannot_be_encoded_are_one_clear_line() -> None:
    with pytest.raises(ConfigInvalid, match=r"data\.size=36 must be a multiple of 8"):
        build_adain(data={"shards": "none", "size": 36})
