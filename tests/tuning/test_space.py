from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fusionray.config import load_config
from fusionray.errors import ConfigInvalid
from fusionray.training.config import TrainConfig
from fusionray.tuning.space import (
    Range,
    check_space,
    configure,
    corners,
    default_settings,
    format_settings,
    short_names,
)

GENERATOR = "recipe.generator_optimizer.base_lr"
DISCRIMINATOR = "recipe.discriminator_optimizer.base_lr"
RANGES = [
    {"choice": [[0.0, 0.99], [0.5, 0.99], [0.9, 0.999]]},
    {"uniform": [0.5, 0.75]},
    {"loguniform": [1e-5, 1e-1]},
    {"integer": [-2, 3]},
]


@pytest.fixture(scope="module")
def train() -> TrainConfig:
    return load_config(TrainConfig, preset="tiny-64", overrides=["data.shards=x"])


def build(**space: dict[str, Any]) -> dict[str, Range]:
    return {key.replace("__", "."): Range.model_validate(values) for key, values in space.items()}


@pytest.mark.parametrize("kind", RANGES, ids=lambda kind: next(iter(kind)))
def test_drawn_and_changed_values_lie_in_the_range_and_can_be_typed(kind: dict[str, Any]) -> None:
    values = Range.model_validate(kind)
    random = np.random.default_rng(0)
    value = values.sample(random)
    for _ in range(200):
        for found in (values.sample(random), value := values.perturb(value, random)):
            assert values.contains(found)
            assert 0 <= values.position(found) <= 1
            assert not isinstance(found, float) or float(f"{found:.4g}") == found or found in values.bounds
    assert values.position(values.extremes()[0]) == 0
    assert values.position(values.extremes()[-1]) == 1


def test_small_whole_numbers_change() -> None:
    values = Range(integer=(1, 4))
    random = np.random.default_rng(0)
    assert {values.perturb(1, random) for _ in range(20)} == {1, 2}
    assert {values.perturb(2, random) for _ in range(20)} == {1, 3}


def test_both_ends_of_whole_numbers_are_drawn() -> None:
    values = Range(integer=(1, 3))
    random = np.random.default_rng(0)
    assert {values.sample(random) for _ in range(50)} == {1, 2, 3}
    assert not values.contains(2.5)
    assert not values.contains(True)


def test_magnitudes_are_drawn_uniformly() -> None:
    values = Range(loguniform=(1e-4, 1.0))
    random = np.random.default_rng(0)
    drawn = np.log10([values.sample(random) for _ in range(2000)])
    counts, _ = np.histogram(drawn, bins=4, range=(-4, 0))
    assert abs(counts / 500 - 1).max() < 0.2
    assert values.position(1e-2) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({}, "give one of"),
        ({"uniform": [0, 1], "choice": [1, 2]}, "give one of"),
        ({"uniform": [2, 1]}, "2 must lie below 1"),
        ({"loguniform": [0, 1]}, "no logarithm"),
        ({"choice": [1]}, "at least 2"),
        ({"integer": [1, 2.5]}, "integer"),
        ({"normal": [0, 1]}, "not permitted"),
    ],
)
def test_an_invalid_range_is_refused(kind: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Range.model_validate(kind)


def test_corners_are_all_combinations_of_extremes_until_there_are_too_many() -> None:
    small = build(a={"uniform": [0, 1]}, b={"choice": [1, 2, 3]})
    assert len(list(corners(small))) == 6
    large = {f"k{index}": Range(uniform=(0, 1)) for index in range(12)}
    found = list(corners(large))
    assert len(found) == 24
    assert all({corner[key] for corner in found} == {0, 1} for key in large)


def test_a_valid_space_is_accepted(train: TrainConfig) -> None:
    space = {
        GENERATOR: Range(loguniform=(5e-4, 1e-2), also=(DISCRIMINATOR,)),
        "engine.global_batch": Range(choice=(8, 16, 32)),
        "recipe.generator_optimizer.betas": Range(choice=([0.5, 0.99], [0.0, 0.99])),
    }
    check_space(space, train)
    settings = {GENERATOR: 4e-3, "engine.global_batch": 32, "recipe.generator_optimizer.betas": [0.0, 0.99]}
    changed = configure(train, space, settings, "here")
    assert changed.engine.global_batch == 32
    recipe: Any = changed.recipe
    assert recipe.generator_optimizer.base_lr == recipe.discriminator_optimizer.base_lr == 4e-3
    assert recipe.generator_optimizer.betas == (0.0, 0.99)
    # What is not searched stays.
    assert changed.budget == train.budget
    assert recipe.generator_optimizer.momentum == train.recipe.generator_optimizer.momentum  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("key", "kind", "words"),
    [
        ("recipe.weights.identty", {"uniform": [0, 1]}, r"unknown key 'recipe\.weights\.identty'"),
        ("recipe.weights.identity", {"uniform": [-1, 20]}, r"recipe\.weights\.identity: .*greater than or equal to 0"),
        ("engine.global_batch", {"uniform": [4, 64]}, r"global_batch.* a valid integer"),
        ("engine.global_batch", {"choice": [16, 0]}, "global_batch=0 must be at least 1"),
        ("recipe.weights.identity", {"uniform": [11, 20]}, r"identity is 10\.0 in the unchanged training"),
        ("budget.images", {"integer": [1, 10000]}, "trials that differ in budget cannot be compared"),
        ("run.seed", {"integer": [0, 3]}, "differ in run"),
        ("workers.num_workers", {"choice": [1, 2]}, "differ in workers"),
        (GENERATOR, {"loguniform": [1e-3, 1e-2], "also": [GENERATOR]}, "occurs twice"),
        (GENERATOR, {"loguniform": [1e-3, 1e-2], "also": ["recipe.weights.truth"]}, "must equal"),
        ("recipe.identity_perturbation.blur", {"uniform": [0, 1]}, "identity_perturbation"),
    ],
)
def test_a_space_that_the_training_does_not_accept_is_refused_in_one_line(
    train: TrainConfig, key: str, kind: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigInvalid, match=words) as caught:
        check_space({key: Range.model_validate(kind)}, train)
    assert "\n" not in str(caught.value)


def test_the_default_is_read_from_the_training(train: TrainConfig) -> None:
    space = build(engine__global_batch={"choice": [8, 16]}, recipe__weights__identity={"uniform": [1, 20]})
    assert default_settings(space, train) == {"engine.global_batch": 16, "recipe.weights.identity": 10.0}


def test_short_names_are_unique() -> None:
    space = {key: Range(uniform=(0, 1)) for key in (GENERATOR, DISCRIMINATOR, "recipe.weights.mask")}
    assert short_names(space) == {
        GENERATOR: "generator_optimizer.base_lr",
        DISCRIMINATOR: "discriminator_optimizer.base_lr",
        "recipe.weights.mask": "mask",
    }


def test_settings_are_written_as_a_person_would() -> None:
    assert format_settings({"a": math.pi / 1000, "b": 16, "c": [0.5, 0.99]}) == "a=0.003142, b=16, c=[0.5, 0.99]"
