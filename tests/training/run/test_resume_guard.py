from __future__ import annotations

import pytest

from fusionray.training.config import TrainConfig
from fusionray.training.run.resume_guard import CHANGEABLE, comparable, fill_defaults, first_difference

BASE = {"data": {"shards": "x"}, "recipe": {"name": "identity"}}


def stored(**changes: object) -> dict[str, object]:
    tree: dict[str, object] = {**BASE, **changes}
    return comparable({"config": TrainConfig.model_validate(tree).model_dump(mode="json"), "data_digest": "d"})


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"batch_size": 4}},
        {"engine": {"precision": "fp32", "compile": True, "activation_checkpointing": True}},
        {"engine": {"cuda_graphs": False}},
        {"data": {"shards": "x", "decode": "nodes", "read_tasks": 2}},
        {"engine": {"parallel": {"strategy": "zero"}}},
        {"workers": {"num_workers": 4}},
        {"budget": {"images": 7}},
        {"data": {"shards": "x", "validation_images": 3}},
    ],
)
def test_how_and_how_long_a_run_is_computed_may_change(changes: dict[str, object]) -> None:
    assert first_difference(stored(), stored(**changes)) == ""


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"engine": {"global_batch": 64}}, r"engine.global_batch (32 before, 64 now)"),
        ({"engine": {"clip_norm": 2.0}}, "engine.clip_norm (1.0 before, 2.0 now)"),
        ({"run": {"seed": 3}}, "run.seed (0 before, 3 now)"),
    ],
)
def test_what_is_learned_may_not(changes: dict[str, object], path: str) -> None:
    assert first_difference(stored(), stored(**changes)) == path


def test_a_setting_that_is_newer_than_the_run_has_its_default() -> None:
    config = TrainConfig.model_validate(BASE).model_dump(mode="json")
    del config["engine"]["cuda_graphs"]
    del config["budget"]
    assert fill_defaults(config) == TrainConfig.model_validate(BASE).model_dump(mode="json")
    gone = {**config, "gone": 1}
    assert fill_defaults(gone) is gone


def test_every_changeable_setting_exists() -> None:
    tree = TrainConfig.model_validate(BASE).model_dump()
    for path in CHANGEABLE:
        found = tree
        for key in path:
            assert key in found, path
            found = found[key]
