from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusionray.config import load_config
from fusionray.config_presets import list_presets
from fusionray.errors import ConfigInvalid
from fusionray.training.config import TrainConfig, WorkersConfig
from fusionray.training.schedule import scale_lr
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.driver import open_search, resolve_train, store_or_compare
from fusionray.tuning.plan import configure_trial, describe_gpu_shortage, milestone, share_cores
from fusionray.tuning.population import check_population
from fusionray.tuning.space import Range, check_space
from tests.support.child_python import ROOT
from tests.tuning.tiny_search import BATCH, RATE, build_plan, build_search

PRESET = ROOT / "jobs" / "presets" / "search-64.yaml"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric": "loss_identity"}, "is a training loss"),
        ({"train": {"run": {"name": "other"}}}, r"run\.name belongs to the search"),
        ({"train": {"run": {"output": "there"}}}, r"set output next to train"),
        ({"search": "pbt", "trials": 4}, "max_concurrent_trials=1 to trials=4"),
        (
            {"search": "pbt", "max_concurrent_trials": 2, "asha": {"grace_images": 1}},
            "asha has no effect with search=pbt",
        ),
        ({"search": "grid"}, "search: Input should be 'random', 'tpe' or 'pbt'"),
        ({"trails": 3}, r"unknown key 'trails'; did you mean 'trials'\?"),
        ({"trials": 1}, "greater than or equal to 2"),
        ({"space": {RATE: {"uniform": [3, 1]}}}, "give one of|must lie below"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line_naming_it(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigInvalid, match=words) as caught:
        build_search(tmp_path, **changes)
    assert "\n" not in str(caught.value)


def test_a_fault_below_train_is_named_with_its_key(tmp_path: Path) -> None:
    config = build_search(tmp_path, train={"engine": {"batches": 3}})
    with pytest.raises(ConfigInvalid, match=r"train: unknown key 'engine\.batches'"):
        resolve_train(config)


def test_a_preset_below_train_is_what_trials_start_from(tmp_path: Path) -> None:
    train = resolve_train(build_search(tmp_path))
    assert train.recipe.name == "identity"
    assert (train.run.name, train.run.output) == ("tiny", str(tmp_path / "runs"))
    assert "identity-small" in list_presets()


def test_the_searched_rate_is_that_of_a_batch_of_32(tmp_path: Path) -> None:
    plan = build_plan(tmp_path)
    trial = configure_trial(plan, "tiny-007", {RATE: 2e-3, BATCH: 16})
    assert trial.run.name == "tiny-007"
    assert trial.recipe.optimizer.base_lr == 2e-3  # type: ignore[union-attr]
    assert scale_lr(2e-3, trial.engine.global_batch) == 1e-3  # type: ignore[arg-type]


def test_reports_of_batches_that_do_not_divide_the_interval_share_a_milestone() -> None:
    assert {milestone(images, 160) for images in (160, 168, 176, 319)} == {160}
    assert milestone(320, 160) == 320


def test_a_search_of_the_same_name_with_other_trials_is_refused(tmp_path: Path) -> None:
    config = build_search(tmp_path)
    folder = str(tmp_path / "runs" / "tiny")
    store_or_compare(folder, config, resolve_train(config))
    for changes in (
        {"trials": 9, "max_concurrent_trials": 3},
        {"max_minutes": 1.0},
        {"train": {"workers": {"num_workers": 2}}},
    ):
        more = build_search(tmp_path, **changes)
        store_or_compare(folder, more, resolve_train(more))
    for changes, words in (
        ({"seed": 1}, r"seed \(0 before, 1 now\)"),
        ({"train": {"budget": {"images": 99}}}, r"train\.budget\.images \(128 before, 99 now\)"),
        ({"space": {BATCH: {"choice": [8, 32]}}}, r"space\.engine\.global_batch\.choice"),
    ):
        other = build_search(tmp_path, **changes)  # type: ignore[arg-type]
        with pytest.raises(ConfigInvalid, match=f"search 'tiny' in .* another {words}"):
            store_or_compare(folder, other, resolve_train(other))


def test_the_searches_of_the_repository_are_valid() -> None:
    config = load_config(TuneConfig, file=PRESET)
    train = resolve_train(config)
    check_space(config.space, train)
    assert config.trials == 8
    assert config.metric.startswith("validation_")
    assert train.budget.images % train.budget.validate_every_images == 0
    assert isinstance(train, TrainConfig)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("recipe.encoder.channels", {"choice": [[8, 8, 8, 8], [8, 8, 8, 16]]}),
        ("recipe.optimizer.kind", {"choice": ["adamw", "sgd"]}),
    ],
)
def test_a_population_takes_no_setting_that_changes_the_checkpoint(
    tmp_path: Path, key: str, values: dict[str, Any]
) -> None:
    config = build_search(tmp_path)
    train = resolve_train(config)
    check_population(config.space, train)
    with pytest.raises(ConfigInvalid, match=rf"space: {key}=.* changes the tensors .* remove {key} from") as caught:
        check_population({**config.space, key: Range.model_validate(values)}, train)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "num_trials", "gpus", "fitting"),
    [
        ({}, 4, 0, None),
        ({}, 4, 4, None),
        ({}, 4, 3, 3),
        ({"num_workers": 2}, 4, 5, 2),
        ({"num_workers": 8}, 4, 4, None),
        ({"num_workers": 8, "min_workers": 2}, 4, 4, 2),
        ({"device": "cpu"}, 4, 3, None),
    ],
)
def test_trials_that_wait_for_gpus_are_told(
    changes: dict[str, Any], num_trials: int, gpus: int, fitting: int | None
) -> None:
    line = describe_gpu_shortage(WorkersConfig(**changes), num_trials, gpus)
    assert line is None if fitting is None else line is not None and f": {fitting} train at a time" in line


@pytest.mark.parametrize(
    ("changes", "max_concurrent_trials", "nodes", "threads"),
    [
        ({}, 1, 1, None),
        ({}, 2, 1, 4),
        ({"num_workers": 2}, 2, 1, 2),
        ({}, 4, 2, 4),
        ({}, 2, 0, 4),
        ({}, 20, 1, 1),
        ({"threads": 3}, 2, 1, 3),
    ],
)
def test_concurrent_trials_share_the_cores(
    changes: dict[str, Any], max_concurrent_trials: int, nodes: int, threads: int | None
) -> None:
    workers = share_cores(WorkersConfig(**changes), max_concurrent_trials, cores=8, nodes=nodes)
    assert workers.threads == threads
    assert workers.bind == (max_concurrent_trials == 1 or "threads" in changes)


def test_a_search_in_an_object_store_names_its_tracker_before_anything_is_asked_of_the_store(tmp_path: Path) -> None:
    config = build_search(tmp_path, output="s3://bucket/runs")
    with pytest.raises(
        ValueError, match=r"^train\.tracking\.uri: .* since output=s3://bucket/runs is not a local folder"
    ):
        open_search(config)
