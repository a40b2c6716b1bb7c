"""Style transfer learns, says what is wrong with its settings, and goes through export and evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto

from fusionray.checkpoint.info import find_checkpoint
from fusionray.errors import CheckpointMissing, ConfigInvalid, InputMissing
from fusionray.nets.vgg import VggFeatures
from fusionray.recipes.recipe import PhaseInput
from fusionray.recipes.registry import find_family
from fusionray.recipes.style_transfer.encoder_recipe import PictureEncoderRecipe, Pictures, cut_views
from fusionray.recipes.style_transfer.perceptual import load_perceptual
from fusionray.recipes.style_transfer.recipe import StyleTransferRecipe, find_network
from fusionray.recipes.style_transfer.validator import StyleValidator
from fusionray.training.dry_run.dry_run import build_dry_recipe, load_dry_config
from fusionray.training.engine.engine import Engine
from tests.support.tiny_style import (
    SIZE,
    build_config,
    build_encoder_config,
    draw_pairs,
    draw_perceptual,
    start_engine,
    write_checkpoint,
)
from tests.support.vgg_files import draw_vgg, write_onnx, write_safetensors


@pytest.fixture(scope="module")
def trained() -> Engine:
    engine = start_engine(build_config(), batch=8)
    pairs = draw_pairs(8)
    for _ in range(60):
        engine.step(pairs)
    return engine


def measure(engine: Engine) -> dict[str, float]:
    recipe, pairs = engine.recipe, draw_pairs(8)
    assert isinstance(recipe, StyleTransferRecipe)
    return recipe.summarise(recipe.measure(recipe.networks, pairs))


def test_training_lowers_every_loss(trained: Engine) -> None:
    before, after = start_engine(build_config(), batch=8), trained
    first, last = (engine.step(draw_pairs(8)).losses for engine in (before, after))
    assert set(first) == {"content", "style", "structure", "contrast", "identity"}
    for name in ("style", "contrast", "structure", "identity"):
        assert float(last[name]) < 0.9 * float(first[name]), name
    assert measure(after)["validation_style_loss_ratio"] < 0.9 * measure(before)["validation_style_loss_ratio"]


def test_many_rows_are_scored_as_few(trained: Engine) -> None:
    recipe, pairs = trained.recipe, draw_pairs(19)
    together = recipe.measure(recipe.networks, pairs)
    last = recipe.measure(recipe.networks, pairs.map(lambda value: value[16:]))
    for name, column in together.items():
        assert column.shape == (19,)
        torch.testing.assert_close(column[16:], last[name], atol=1e-5, rtol=1e-4)


def test_weaker_styles_leave_more_of_the_content(trained: Engine) -> None:
    recipe, pairs = trained.recipe, draw_pairs(8)
    shown = recipe.preview(recipe.networks, pairs)
    assert shown is not None
    assert shown.shape == (8, 5, 3, SIZE, SIZE)
    content = shown[:, 1].float()
    distances = [(shown[:, column].float() - content).abs().mean().item() for column in (2, 3, 4)]
    assert distances == sorted(distances, reverse=True)


def test_a_loss_without_weight_is_not_computed() -> None:
    weights = {"content": 0, "structure": 0, "contrast": 0, "identity": 0}
    engine = start_engine(build_config({"name": "style_transfer", "weights": weights}))
    assert set(engine.step(draw_pairs(4)).losses) == {"style"}


def test_a_validator_scores_by_its_own_network(trained: Engine) -> None:
    pairs = draw_pairs(4)

    class HeldOut:
        groups = ()

        def draw(self, num_roles: int, seed: int, source_folder: str | None = None) -> Any:
            assert (num_roles, source_folder) == (2, "styles")
            return torch.arange(8).view(4, 2).numpy()

    family, config = find_family("style_transfer"), build_config()
    dependencies = {"recipe.perceptual": draw_perceptual(), "validation.evaluator": draw_perceptual(1)}
    validator = family.build_validator(config, dependencies, HeldOut(), torch.device("cpu"))  # type: ignore[arg-type]
    assert isinstance(validator, StyleValidator)
    scores = validator.summarise(validator.measure(trained.recipe, trained.recipe.networks, pairs))  # type: ignore[arg-type]
    own = trained.recipe.summarise(trained.recipe.measure(trained.recipe.networks, pairs))
    assert scores.keys() == own.keys()
    assert scores["validation_content_ssim"] == pytest.approx(own["validation_content_ssim"])
    assert scores["validation_style_loss"] != pytest.approx(own["validation_style_loss"], rel=1e-3)


def test_the_network_that_supervises_is_no_evaluator(trained: Engine, tmp_path: Path) -> None:
    family, config = find_family("style_transfer"), build_config(validation={"evaluator": "runs/mine"})
    same = {"recipe.perceptual": draw_perceptual(), "validation.evaluator": draw_perceptual()}
    with pytest.raises(ValueError, match=r"validation\.evaluator=runs/mine: is the network that supervises"):
        family.check_dependencies(config, same)
    family.check_dependencies(config, same | {"validation.evaluator": draw_perceptual(1)})
    encoder_config = build_encoder_config()
    encoder = start_engine(encoder_config)
    encoder.recipe.networks["encoder"].load_state_dict(dict(draw_perceptual().weights))
    encoder.step(Pictures(draw_pairs(4).style))
    checkpoint = find_checkpoint(write_checkpoint(trained, build_config(), tmp_path / "run"))
    other = find_checkpoint(write_checkpoint(encoder, encoder_config, tmp_path / "encoder"))
    family.check_evaluator(other, checkpoint)
    assert family.build_scorer(other, torch.device("cpu")).ratios
    with pytest.raises(CheckpointMissing, match="holds no picture encoder"):
        family.build_scorer(checkpoint, torch.device("cpu"))


@pytest.mark.parametrize(
    ("recipe", "sections", "said"),
    [
        ({}, {"data": {"shards": "none", "size": 34}}, r"data\.size=34 must be a multiple of 4"),
        ({}, {"validation": {"evaluator": "x", "attributes": "y"}}, r"validation\.attributes reads faces"),
        ({"weights": {"styl": 1}}, {}, "styl"),
    ],
)
def test_wrong_settings_are_one_clear_line(recipe: dict[str, Any], sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigInvalid, match=said) as caught:
        build_config({"name": "style_transfer", **recipe}, **sections)
    assert "\n" not in str(caught.value)


def test_a_layer_that_the_perceptual_network_lacks_is_named() -> None:
    with pytest.raises(ValueError, match=r"recipe\.content_layers=\(2, 4\): the perceptual network has 4 feature maps"):
        start_engine(build_config({"name": "style_transfer", "content_layers": [2, 4]}))


@pytest.mark.parametrize(("name", "write"), [("vgg.safetensors", write_safetensors), ("vgg.onnx", write_onnx)])
def test_a_vgg_from_a_file_supervises(tmp_path: Path, name: str, write: Any) -> None:
    state = load_perceptual(str(write(tmp_path / name, draw_vgg())))
    torch.testing.assert_close(dict(state.weights), draw_vgg())
    recipe = StyleTransferRecipe(build_config().recipe, state.build())  # type: ignore[arg-type]
    batch = recipe.prepare(draw_pairs(2))
    losses = recipe.paint(PhaseInput(recipe.networks, recipe.frozen, batch))
    losses.total.backward()
    assert all(parameter.grad is not None for parameter in find_network(recipe.networks).parameters())


def test_a_setting_may_name_the_file(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "vgg.safetensors", draw_vgg())
    overrides = [f"recipe.perceptual={path}", "data.size=32"]
    recipe, notes = build_dry_recipe(load_dry_config(None, overrides, "style-tiny"))
    assert isinstance(recipe.frozen["perceptual"], VggFeatures)
    assert notes == [f"recipe.perceptual={path}: found"]
    with pytest.raises(CheckpointMissing, match=r"none\.safetensors: no such checkpoint or run folder"):
        build_dry_recipe(load_dry_config(None, [f"recipe.perceptual={tmp_path}/none.safetensors"], "style-tiny"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a safetensors file"),
        (b"PK\x03\x04 a zip of pickles", "is not a safetensors file"),
        (b"\x02\0\0\0\0\0\0\0{}", "holds no convolutions of a VGG"),
        (
            b'\x47\0\0\0\0\0\0\0{"features.0.weight":{"dtype":"F32","shape":[4],"data_offsets":[0,99]}}',
            "outside the file",
        ),
    ],
)
def test_a_file_of_something_else_is_one_clear_line(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "vgg.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputMissing, match=said) as caught:
        load_perceptual(str(path))
    assert str(caught.value).startswith(str(path))
    with pytest.raises(InputMissing, match="cannot be read"):
        load_perceptual(str(tmp_path / "none.safetensors"))


def test_an_onnx_file_of_something_else_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "vgg.onnx"
    for data, said in ((b"no model", "is not an ONNX model"), (b"", "holds no convolutions of a VGG")):
        path.write_bytes(data)
        with pytest.raises(InputMissing, match=said):
            load_perceptual(str(path))
    model = onnx.load_model_from_string(write_onnx(path, draw_vgg()).read_bytes())
    onnx.external_data_helper.convert_model_to_external_data(model, location="beside.bin", size_threshold=0)
    for tensor in model.graph.initializer:
        tensor.data_location = TensorProto.EXTERNAL
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputMissing, match="its weights lie in another file"):
        load_perceptual(str(path))


def test_the_encoder_learns_to_tell_pictures_apart() -> None:
    engine, pairs = start_engine(build_encoder_config(), batch=24), draw_pairs(12)
    batch = Pictures(torch.cat([pairs.style, pairs.content]))
    losses = [float(engine.step(batch).losses["contrast"]) for _ in range(60)]
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])
    recipe = engine.recipe
    assert isinstance(recipe, PictureEncoderRecipe)
    assert recipe.preview(recipe.networks, batch) is None
    found = recipe.summarise(recipe.measure(recipe.networks, batch))
    assert found["validation_contrast_accuracy"] > 2 / len(batch)


def test_views_are_squares_of_their_pictures() -> None:
    rows = torch.arange(20.0).view(1, 1, 20, 1).expand(5, 3, 20, 20)
    pictures = rows + 100 * torch.arange(20.0) + 10_000 * torch.arange(5.0).view(5, 1, 1, 1)
    views = cut_views(pictures, 8)
    assert views.shape == (5, 3, 8, 8)
    corner = views[:, :1, :1, :1]
    expected = torch.arange(8.0).view(8, 1) + 100 * torch.arange(8.0)
    torch.testing.assert_close(views, (corner + expected).expand(5, 3, 8, 8))
    assert (corner.flatten() // 10_000).tolist() == [0, 1, 2, 3, 4]
    assert cut_views(pictures, 99).shape == pictures.shape
