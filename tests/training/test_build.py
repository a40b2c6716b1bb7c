from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fusionray.config import Section
from fusionray.errors import CheckpointMissing
from fusionray.faces.align import load_template
from fusionray.nets.identity import IdentityEncoder
from fusionray.recipes.face_fusion import FaceFusionRecipe
from fusionray.recipes.identity import IdentityRecipe, IdentityRecipeConfig
from fusionray.training.build import EncoderState, build_recipe, face_view, load_encoder, load_fusion
from fusionray.training.checkpoint.info import CheckpointInfo
from fusionray.training.checkpoint.writer import CheckpointWriter
from fusionray.training.engine import Engine
from fusionray.training.settings import DataConfig, EngineConfig, RunConfig, TrainConfig
from fusionray.training.state import state_tensors
from tests.tiny_fusion import ENCODER, SIZE, build_config, build_pairs

CPU = torch.device("cpu")
DATA = DataConfig(shards="x", size=SIZE)


def encoder_state(seed: int = 3) -> EncoderState:
    torch.manual_seed(seed)
    encoder = IdentityEncoder(ENCODER)
    return EncoderState(ENCODER.model_dump(mode="json"), encoder.state_dict())


def fusion_config(seed: int = 0) -> TrainConfig:
    return TrainConfig(run=RunConfig(seed=seed), data=DATA, recipe=build_config())


def identity_config() -> TrainConfig:
    return TrainConfig(data=DATA, recipe=IdentityRecipeConfig(encoder=ENCODER))


def describe(config: TrainConfig, encoder: Section) -> CheckpointInfo:
    return CheckpointInfo(
        config=config.model_dump(mode="json"),
        num_people=4,
        identity_encoder=encoder.model_dump(mode="json"),
        data_digest="d",
        images_seen=2,
        seconds=1.0,
        metrics={},
    )


def save(run: Path, engine: Engine, config: TrainConfig) -> None:
    writer = CheckpointWriter(str(run), keep=1)
    writer.begin(state_tensors(engine), describe(config, ENCODER))
    writer.close()


def save_fusion(run: Path) -> tuple[Engine, EncoderState]:
    config, encoder = fusion_config(), encoder_state()
    recipe = build_recipe(config, num_people=4, encoder=encoder)
    engine = Engine(recipe, EngineConfig(global_batch=2, precision="fp32"), total_images=8, device=CPU)
    engine.step(build_pairs(2))
    save(run, engine, config)
    return engine, encoder


def save_identity(run: Path) -> Engine:
    recipe = build_recipe(identity_config(), num_people=4, encoder=None)
    engine = Engine(recipe, EngineConfig(global_batch=2, precision="fp32"), total_images=8, device=CPU)
    # An average that differs from the weights, so that a test sees which of them is taken.
    for value in engine.averages["classifier"].parameters():
        value.add_(1)
    save(run, engine, identity_config())
    return engine


def test_the_recipe_is_the_one_that_the_configuration_names() -> None:
    assert isinstance(build_recipe(fusion_config(), num_people=4, encoder=encoder_state()), FaceFusionRecipe)
    identity = build_recipe(identity_config(), num_people=9, encoder=None)
    assert isinstance(identity, IdentityRecipe)
    assert identity.networks["classifier"].head.centres.shape == (9, 512)


def test_equal_seeds_give_equal_first_weights_whatever_was_drawn_before() -> None:
    def first_weight(seed: int) -> torch.Tensor:
        torch.rand(7)
        recipe = build_recipe(fusion_config(seed), num_people=4, encoder=encoder_state())
        return next(recipe.networks["generator"].parameters())

    assert torch.equal(first_weight(1), first_weight(1))
    assert not torch.equal(first_weight(1), first_weight(2))


def test_the_supervising_encoder_is_the_one_given_frozen() -> None:
    encoder = encoder_state()
    recipe = build_recipe(fusion_config(), num_people=4, encoder=encoder)
    found = recipe.frozen["identity"]
    torch.testing.assert_close(dict(found.state_dict()), dict(encoder.weights), rtol=0, atol=0)
    assert not found.training
    assert not any(parameter.requires_grad for parameter in found.parameters())


def test_the_face_of_each_template_lies_where_its_points_say() -> None:
    torch.testing.assert_close(face_view("arcface_112"), torch.eye(3)[:2], rtol=0, atol=1e-6)
    wanted = torch.tensor([[112 / 128, 0, 8 / 128], [0, 112 / 128, 0]])
    torch.testing.assert_close(face_view("arcface_128"), wanted, rtol=0, atol=1e-6)
    view = face_view("ffhq_512").double().numpy()
    moved = load_template("arcface_112").unit_points @ view[:, :2].T + view[:, 2]
    # The two templates have faces of slightly other proportions: the fit leaves a hundredth of the side.
    assert np.abs(moved - load_template("ffhq_512").unit_points).max() < 0.02


def test_a_fusion_checkpoint_gives_back_the_averaged_generator_and_its_encoder(tmp_path: Path) -> None:
    engine, encoder = save_fusion(tmp_path)
    loaded = load_fusion(tmp_path)
    averaged = engine.averages["generator"].state_dict()
    torch.testing.assert_close(dict(loaded.generator.state_dict()), dict(averaged), rtol=0, atol=0)
    torch.testing.assert_close(dict(loaded.encoder.state_dict()), dict(encoder.weights), rtol=0, atol=0)
    assert loaded.config == fusion_config()
    assert not loaded.generator.training
    assert load_encoder(str(tmp_path)).weights.keys() == encoder.weights.keys()


def test_an_identity_checkpoint_gives_back_the_averaged_encoder_without_its_head(tmp_path: Path) -> None:
    engine = save_identity(tmp_path)
    encoder = load_encoder(str(tmp_path)).build()
    averaged = engine.averages["classifier"].encoder
    assert isinstance(averaged, IdentityEncoder)
    torch.testing.assert_close(dict(encoder.state_dict()), dict(averaged.state_dict()), rtol=0, atol=0)


def test_an_identity_checkpoint_is_refused_where_a_fusion_is_wanted(tmp_path: Path) -> None:
    save_identity(tmp_path)
    with pytest.raises(CheckpointMissing, match="is a checkpoint of the identity recipe, not of face_fusion"):
        load_fusion(tmp_path)


def test_a_checkpoint_of_networks_that_are_built_otherwise_now_is_refused_in_one_line(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path), keep=1)
    weights = {f"averages.generator.{name}": torch.zeros(2) for name in ("old", "older")}
    writer.begin(weights, describe(fusion_config(), ENCODER))
    writer.close()
    with pytest.raises(CheckpointMissing, match="does not fit the networks of this version") as caught:
        load_fusion(tmp_path)
    assert "\n" not in str(caught.value)
