from __future__ import annotations

import re

import pytest

from fusionray.config import load_config
from fusionray.errors import ConfigInvalid
from fusionray.training.config import TrainConfig


def test_a_batch_that_workers_cannot_share_is_refused_before_they_start() -> None:
    overrides = ["data.shards=x", "workers.num_workers=3", "engine.global_batch=2"]
    with pytest.raises(ConfigInvalid, match=r"engine\.global_batch=2 is less than one image for each of 3 workers"):
        load_config(TrainConfig, preset="tiny-64", overrides=overrides)
    # One that does not divide is shared by turns.
    load_config(TrainConfig, preset="tiny-64", overrides=[*overrides[:2], "engine.global_batch=32"])


def test_fewer_workers_than_none_or_more_than_all_are_refused() -> None:
    overrides = ["data.shards=x", "workers.num_workers=2", "workers.min_workers=3"]
    with pytest.raises(ConfigInvalid, match="min_workers=3 is more than num_workers=2"):
        load_config(TrainConfig, preset="tiny-64", overrides=overrides)


def test_feature_matching_without_a_layer_to_match_is_refused() -> None:
    overrides = ["data.shards=x", "recipe.discriminator.channels=[8]"]
    with pytest.raises(ConfigInvalid, match="matching_from_layer=1 leaves none of the 1 layers"):
        load_config(TrainConfig, preset="tiny-64", overrides=overrides)


def test_stages_of_an_encoder_without_a_depth_are_refused() -> None:
    with pytest.raises(ConfigInvalid, match="same number of stages"):
        load_config(TrainConfig, preset="identity-small", overrides=["data.shards=x", "recipe.encoder.channels=[8]"])


@pytest.mark.parametrize(
    ("preset", "override", "words"),
    [
        ("tiny-64", "validation.attributes=there", "has no effect without validation.evaluator"),
        (
            "identity-small",
            "validation.evaluator=there",
            "validation.evaluator: no network scores models of recipe.name=identity",
        ),
    ],
)
def test_evaluators_without_fusions_to_evaluate_are_refused(preset: str, override: str, words: str) -> None:
    with pytest.raises(ConfigInvalid, match=re.escape(words)):
        load_config(TrainConfig, preset=preset, overrides=["data.shards=x", override])


@pytest.mark.parametrize(
    ("preset", "override", "synthetic", "needed"),
    [
        # A true fusion that is rendered shows the face itself.
        ("tiny-64", "recipe.paired=true", True, False),
        ("tiny-64", "recipe.paired=true", False, True),
        ("tiny-64", "recipe.paired=false", True, True),
        ("identity-small", "run.seed=1", False, False),
    ],
)
def test_regions_of_faces_are_read_where_no_true_fusion_shows_them(
    preset: str, override: str, synthetic: bool, needed: bool
) -> None:
    config = load_config(TrainConfig, preset=preset, overrides=["data.shards=x", override])
    assert config.family.needs_regions(config.recipe, synthetic=synthetic) is needed
