from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusionray.checkpoint.info import CheckpointInfo
from fusionray.checkpoint.models import EncoderState, load_encoder, load_fusion, load_reader, start_from
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.errors import CheckpointMissing
from fusionray.faces.align import load_template
from fusionray.metrics.attribute_reader import READINGS, AttributeReader
from fusionray.nets.discriminator import DiscriminatorConfig
from fusionray.nets.generator import GeneratorConfig
from fusionray.nets.identity import IdentityEncoder
from fusionray.nets.pixels import to_float
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from fusionray.recipes.attributes import AttributesRecipe, AttributesRecipeConfig
from fusionray.recipes.face_fusion.recipe import FaceFusionRecipe
from fusionray.recipes.identity import IdentityRecipe, IdentityRecipeConfig
from fusionray.recipes.recipe import Recipe
from fusionray.recipes.registry import build_recipe
from fusionray.training.config import DataConfig, EngineConfig, RunConfig, TrainConfig
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import state_tensors
from tests.support.tiny_fusion import ENCODER, SEEING, SIZE, build_config, build_pairs

CPU = torch.device("cpu")
DATA = DataConfig(shards="x", size=SIZE)


def encoder_state(seed: int = 3) -> EncoderState:
    torch.manual_seed(seed)
    encoder = IdentityEncoder(ENCODER)
    return EncoderState(ENCODER.model_dump(mode="json"), encoder.state_dict())


def fusion_config(seed: int = 0) -> TrainConfig:
    return TrainConfig(run=RunConfig(seed=seed), data=DATA, recipe=build_config())


def seeing_config() -> TrainConfig:
    """Configure a generator that looks at the source."""
    return TrainConfig(data=DataConfig(shards="x", size=SEEING.size), recipe=build_config(generator=SEEING))


def identity_config() -> TrainConfig:
    return TrainConfig(data=DATA, recipe=IdentityRecipeConfig(encoder=ENCODER))


def attributes_config() -> TrainConfig:
    return TrainConfig(data=DATA, recipe=AttributesRecipeConfig(encoder=ENCODER))


def build(config: TrainConfig, num_people: int, encoder: EncoderState | None = None) -> Recipe[Any]:
    facts = config.dataset_info(num_people=num_people, synthetic=False)
    return build_recipe(config, facts, {"recipe.identity_encoder": encoder})


def describe(config: TrainConfig, recipe: Recipe[Any]) -> CheckpointInfo:
    return CheckpointInfo(
        config=config.model_dump(mode="json"),
        num_people=4,
        data_digest="d",
        images_seen=2,
        seconds=1.0,
        metrics={},
        metadata=config.family.describe(recipe),
    )


def save(run: Path, engine: Engine, config: TrainConfig) -> None:
    writer = CheckpointWriter(str(run), keep=1)
    writer.begin(state_tensors(engine), describe(config, engine.recipe))
    writer.close()


def save_fusion(run: Path) -> tuple[Engine, EncoderState]:
    config, encoder = fusion_config(), encoder_state()
    recipe = build(config, 4, encoder)
    engine = Engine(recipe, EngineConfig(global_batch=2, precision="fp32"), total_images=8, device=CPU)
    engine.step(build_pairs(2))
    save(run, engine, config)
    return engine, encoder


def save_untrained(run: Path, config: TrainConfig) -> Engine:
    """Save an identity or attributes run with averages that differ from the weights: a test sees which are taken."""
    recipe = build(config, 4)
    engine = Engine(recipe, EngineConfig(global_batch=2, precision="fp32"), total_images=8, device=CPU)
    for average in engine.ema_networks.values():
        for value in average.parameters():
            value.add_(0.01)
    save(run, engine, config)
    return engine


def test_the_recipe_is_the_one_that_the_configuration_names() -> None:
    assert isinstance(build(fusion_config(), 4, encoder_state()), FaceFusionRecipe)
    identity = build(identity_config(), 9)
    assert isinstance(identity, IdentityRecipe)
    assert identity.networks["classifier"].head.centres.shape == (9, 512)
    assert isinstance(build(attributes_config(), 4), AttributesRecipe)


def test_equal_seeds_give_equal_first_weights_whatever_was_drawn_before() -> None:
    def first_weight(seed: int) -> torch.Tensor:
        torch.rand(7)
        recipe = build(fusion_config(seed), 4, encoder_state())
        return next(recipe.networks["generator"].parameters())

    assert torch.equal(first_weight(1), first_weight(1))
    assert not torch.equal(first_weight(1), first_weight(2))


def test_the_supervising_encoder_is_the_one_given_frozen() -> None:
    encoder = encoder_state()
    recipe = build(fusion_config(), 4, encoder)
    found = recipe.frozen["identity"]
    torch.testing.assert_close(dict(found.state_dict()), dict(encoder.weights), rtol=0, atol=0)
    assert not found.training
    assert not any(parameter.requires_grad for parameter in found.parameters())


def test_the_face_of_each_template_lies_where_its_points_say() -> None:
    torch.testing.assert_close(crop_to_arcface_affine("arcface_112"), torch.eye(3)[:2], rtol=0, atol=1e-6)
    wanted = torch.tensor([[112 / 128, 0, 8 / 128], [0, 112 / 128, 0]])
    torch.testing.assert_close(crop_to_arcface_affine("arcface_128"), wanted, rtol=0, atol=1e-6)
    view = crop_to_arcface_affine("ffhq_512").double().numpy()
    moved = load_template("arcface_112").unit_points @ view[:, :2].T + view[:, 2]
    # The two templates have faces of slightly other proportions: the fit leaves a hundredth of the side.
    assert np.abs(moved - load_template("ffhq_512").unit_points).max() < 0.02


def test_a_fusion_checkpoint_gives_back_the_averaged_generator_and_its_encoder(tmp_path: Path) -> None:
    engine, encoder = save_fusion(tmp_path)
    loaded = load_fusion(tmp_path)
    averaged = engine.ema_networks["generator"].state_dict()
    torch.testing.assert_close(dict(loaded.network.state_dict()), dict(averaged), rtol=0, atol=0)
    torch.testing.assert_close(dict(loaded.encoder.state_dict()), dict(encoder.weights), rtol=0, atol=0)
    config = fusion_config()
    assert loaded.config.recipe.generator == config.recipe.generator
    assert (loaded.config.data.template, loaded.config.run.name) == (config.data.template, config.run.name)
    assert not loaded.network.training
    assert load_encoder(str(tmp_path)).weights.keys() == encoder.weights.keys()


def test_what_reads_the_source_of_a_checkpoint_tells_its_generator_what_training_told_it(tmp_path: Path) -> None:
    config, encoder = seeing_config(), encoder_state()
    recipe = build(config, 4, encoder)
    save(tmp_path, Engine(recipe, EngineConfig(), total_images=8, device=CPU), config)
    loaded, pairs = load_fusion(tmp_path), build_pairs(2, seed=1)
    source, target = to_float(pairs.source), torch.rand(2, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        wanted = recipe.fuse(recipe.networks, source, target)
        found = loaded.generator(loaded.reader(recipe.frozen["face_crop"](source)), target)
    torch.testing.assert_close(found.output, wanted.output)
    # Where the source's face lies in the crop has come with the checkpoint.
    places = recipe.networks["generator"].generator.lookup.places_key
    assert torch.equal(loaded.generator.lookup.places_key, places)


def test_a_new_run_starts_from_the_averages_of_another_and_the_rest_of_its_networks(tmp_path: Path) -> None:
    engine, encoder = save_fusion(tmp_path)
    recipe = build(fusion_config(seed=5), 4, encoder)
    start_from(recipe, str(tmp_path), SIZE)
    for name, wanted in (
        ("generator", engine.ema_networks["generator"]),
        ("discriminator", engine.networks["discriminator"]),
    ):
        torch.testing.assert_close(dict(recipe.networks[name].state_dict()), dict(wanted.state_dict()), rtol=0, atol=0)
    averaged, trained = (networks["generator"].state_dict() for networks in (engine.ema_networks, engine.networks))
    assert any(not torch.equal(averaged[name], trained[name]) for name in averaged)
    save_untrained(tmp_path / "encoder", identity_config())
    with pytest.raises(CheckpointMissing, match=r"holds no tensor named averages\.generator"):
        start_from(recipe, str(tmp_path / "encoder"), SIZE)


def larger_config(channels: tuple[int, ...], scales: int = 3) -> TrainConfig:
    generator = GeneratorConfig(size=2 * SIZE, channels=channels, bottleneck_blocks=1, style_length=16)
    discriminator = DiscriminatorConfig(channels=(4, 8), scales=scales)
    recipe = build_config(generator=generator, discriminator=discriminator)
    return TrainConfig(data=DataConfig(shards="x", size=2 * SIZE), recipe=recipe)


def test_a_new_run_of_twice_the_size_grows_from_the_averages_of_another(tmp_path: Path) -> None:
    engine, encoder = save_fusion(tmp_path)
    recipe = build(larger_config((4, 8, 16)), 4, encoder)
    start_from(recipe, str(tmp_path), 2 * SIZE)
    averaged = engine.ema_networks["generator"].state_dict()
    grown = recipe.networks["generator"].state_dict()
    assert torch.equal(grown["generator.encoder.1.conv.weight"], averaged["generator.encoder.0.conv.weight"])
    assert torch.equal(grown["generator.decoder.0.gate.weight"], averaged["generator.decoder.0.gate.weight"])
    trained = engine.networks["discriminator"].state_dict()
    judging = recipe.networks["discriminator"].state_dict()
    assert torch.equal(judging["scales.2.head.weight"], trained["scales.1.head.weight"])
    Engine(recipe, EngineConfig(global_batch=2), total_images=8, device=CPU).step(build_pairs(2, size=2 * SIZE))
    # Its inner levels must have the widths of those that it grows from.
    with pytest.raises(CheckpointMissing, match="does not fit the networks"):
        start_from(build(larger_config((4, 8, 12)), 4, encoder), str(tmp_path), 2 * SIZE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": (4, 4, 8, 16)}, r"the generator has 2 more levels \(recipe.generator.channels\).* are 2 times"),
        ({"scales": 4}, r"the discriminator has 2 more levels \(recipe.discriminator.scales\).* are 2 times"),
    ],
)
def test_networks_that_would_grow_by_other_levels_than_their_crops_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    _, encoder = save_fusion(tmp_path)
    with pytest.raises(CheckpointMissing, match=message):
        start_from(build(larger_config(**{"channels": (4, 8, 16), **changes}), 4, encoder), str(tmp_path), 2 * SIZE)


def test_an_identity_checkpoint_gives_back_the_averaged_encoder_without_its_head(tmp_path: Path) -> None:
    engine = save_untrained(tmp_path, identity_config())
    encoder = load_encoder(str(tmp_path)).build()
    averaged = engine.ema_networks["classifier"].encoder
    assert isinstance(averaged, IdentityEncoder)
    torch.testing.assert_close(dict(encoder.state_dict()), dict(averaged.state_dict()), rtol=0, atol=0)


def test_an_identity_checkpoint_is_refused_where_a_fusion_is_wanted(tmp_path: Path) -> None:
    save_untrained(tmp_path, identity_config())
    with pytest.raises(CheckpointMissing, match="is a checkpoint of the identity recipe, not of face_fusion"):
        load_fusion(tmp_path)


def test_an_attributes_checkpoint_gives_back_a_reader_that_reads_the_same_in_the_same_units(tmp_path: Path) -> None:
    engine = save_untrained(tmp_path, attributes_config())
    reader = load_reader(str(tmp_path))
    averaged = engine.ema_networks["reader"].eval()
    assert isinstance(averaged, AttributeReader)
    face = torch.rand(3, 3, 112, 112, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        torch.testing.assert_close(reader(face), averaged(face), rtol=0, atol=0)
    torch.testing.assert_close(reader.standard.deviation, averaged.standard.deviation, rtol=0, atol=0)
    assert reader.names == READINGS
    assert not reader.training
    assert not any(parameter.requires_grad for parameter in reader.parameters())


def test_a_reader_is_no_encoder_and_an_encoder_no_reader(tmp_path: Path) -> None:
    save_untrained(tmp_path / "reader", attributes_config())
    save_untrained(tmp_path / "encoder", identity_config())
    with pytest.raises(CheckpointMissing, match="holds no identity encoder"):
        load_encoder(str(tmp_path / "reader"))
    with pytest.raises(
        CheckpointMissing, match="holds no attribute reader; train one with `--preset attributes-small`"
    ):
        load_reader(str(tmp_path / "encoder"))


def test_a_checkpoint_of_networks_that_are_built_otherwise_now_is_refused_in_one_line(tmp_path: Path) -> None:
    writer = CheckpointWriter(str(tmp_path), keep=1)
    weights = {f"averages.generator.{name}": torch.zeros(2) for name in ("old", "older")}
    recipe = build(fusion_config(), 4, encoder_state())
    writer.begin(weights, describe(fusion_config(), recipe))
    writer.close()
    with pytest.raises(CheckpointMissing, match="does not fit the networks of this version") as caught:
        load_fusion(tmp_path)
    assert "\n" not in str(caught.value)
