"""What the driver settles before any worker starts, without a Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionray.checkpoint.info import find_checkpoint
from fusionray.config import load_config
from fusionray.errors import ConfigInvalid, ShardMismatch
from fusionray.recipes.attributes import AttributesRecipeConfig
from fusionray.training.config import DataConfig, RunConfig, TrainConfig, ValidationConfig
from fusionray.training.train import configure_dependency, load_dependencies, train
from tests.support.tiny_fusion import SIZE as FUSION_SIZE
from tests.support.tiny_fusion import build_config, save_encoder
from tests.support.tiny_shards import SIZE, write_tiny_shards
from tests.support.tiny_world import save_fusion, write_world


def test_a_reader_of_attributes_is_not_trained_on_photographs(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path / "shards")
    config = load_config(
        TrainConfig,
        preset="attributes-small",
        overrides=[f"data.shards={tmp_path}/shards", f"data.size={SIZE}", f"run.output={tmp_path}/runs"],
    )
    with pytest.raises(ShardMismatch, match=r"holds photographs, .*data\.shards=synthetic") as caught:
        train(config)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_the_supervising_encoder_cannot_be_the_evaluator(tmp_path: Path) -> None:
    write_world(tmp_path / "shards")
    save_encoder(tmp_path / "encoder")
    save_fusion(tmp_path / "other")
    config = TrainConfig(
        run=RunConfig(output=str(tmp_path / "runs")),
        data=DataConfig(shards=str(tmp_path / "shards"), size=FUSION_SIZE),
        recipe=build_config(identity_encoder=str(tmp_path / "encoder")),
        validation=ValidationConfig(evaluator=str(tmp_path / "encoder")),
    )
    with pytest.raises(ValueError, match="is the encoder that supervises this run"):
        train(config)
    evaluated = config.model_copy(update={"validation": ValidationConfig(evaluator=str(tmp_path / "other"))})
    assert load_dependencies(evaluated)["validation.evaluator"] == find_checkpoint(str(tmp_path / "other"))
    assert set(load_dependencies(config.model_copy(update={"validation": ValidationConfig()}))) == {
        "recipe.identity_encoder"
    }


def test_a_preset_is_trained_beside_a_run_on_its_data_and_workers() -> None:
    overrides = [
        "data.shards=there",
        "data.shuffle_buffer_rows=99",
        "run.output=here",
        "run.seed=5",
        "workers.num_workers=2",
    ]
    fusion = load_config(TrainConfig, preset="tiny-64", overrides=overrides)
    reader = configure_dependency(fusion, "attributes-small")
    assert isinstance(reader.recipe, AttributesRecipeConfig)
    assert (reader.workers, reader.tracking) == (fusion.workers, fusion.tracking)
    # Beside another fusion, which draws other pairs, it is the same run.
    assert reader.data == fusion.data.model_copy(update={"same_identity_ratio": reader.data.same_identity_ratio})
    other = load_config(TrainConfig, preset="tiny-64", overrides=[*overrides, "data.same_identity_ratio=0.7"])
    assert configure_dependency(other, "attributes-small") == reader
    assert (reader.run.name, reader.run.output) == ("attributes-small", "here")
    # Runs of several seeds share them; evaluators have other seeds than the supervising encoder.
    seeds = {name: configure_dependency(fusion, name).run.seed for name in ("identity-small", "identity-evaluator")}
    assert seeds == {"identity-small": 0, "identity-evaluator": 1000}
    with pytest.raises(ConfigInvalid, match="no preset 'attributes-huge'"):
        configure_dependency(fusion, "attributes-huge")
