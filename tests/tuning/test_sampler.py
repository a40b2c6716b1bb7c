from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusionray.tuning.config import TuneConfig
from fusionray.tuning.records import TrialRecord
from fusionray.tuning.sampler import perturb_settings, propose
from tests.tuning.tiny_search import BATCH, RATE, build_record, build_search

DEFAULT = {RATE: 1e-3, BATCH: 8}


def run_all(config: TuneConfig, number: int) -> list[TrialRecord]:
    """Let a search propose trials whose value falls with the distance of the rate to 3e-3."""
    records: list[TrialRecord] = []
    for index in range(number):
        settings = propose(config, DEFAULT, records, index)
        value = 1 - abs(np.log10(settings[RATE] / 3e-3))
        records.append(build_record(index, "finished", [float(value)], settings))
    return records


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_the_first_trial_is_the_unchanged_training(tmp_path: Path, search: str) -> None:
    assert propose(build_search(tmp_path, search=search), DEFAULT, [], 0) == DEFAULT


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_proposals_lie_in_the_space_and_depend_only_on_seed_number_and_records(tmp_path: Path, search: str) -> None:
    config = build_search(tmp_path, search=search, trials=8)
    first, second = run_all(config, 8), run_all(config, 8)
    assert first == second
    assert all(config.space[key].contains(value) for record in first for key, value in record.settings.items())
    assert len({record.settings[RATE] for record in first}) == 8
    other = run_all(build_search(tmp_path, search=search, trials=8, seed=1), 8)
    assert [record.settings for record in other[1:]] != [record.settings for record in first[1:]]


def test_the_estimator_finds_better_values_than_chance(tmp_path: Path) -> None:
    distances = {}
    for search in ("random", "tpe"):
        found = run_all(build_search(tmp_path, search=search), 24)[12:]
        distances[search] = float(np.mean([abs(np.log10(record.settings[RATE] / 3e-3)) for record in found]))
    assert distances["tpe"] < 0.7 * distances["random"]


def test_the_estimator_accepts_running_stopped_and_failed_trials(tmp_path: Path) -> None:
    config = build_search(tmp_path, search="tpe")
    records = [
        build_record(0, "finished", [0.5, 0.6], DEFAULT),
        build_record(1, "stopped", [0.4]),
        build_record(2, "running", [0.5]),
        build_record(3, "failed", []),
        build_record(4, "stopped", []),
        build_record(5, "running", []),
    ]
    # Numbers of records here run out of the space; what Optuna is told must lie in it.
    records = [record.model_copy(update={"settings": {RATE: 2e-3, BATCH: 16}}) for record in records]
    settings = propose(config, DEFAULT, records, 6)
    assert all(config.space[key].contains(value) for key, value in settings.items())


def test_a_member_that_copies_another_tries_settings_near_it(tmp_path: Path) -> None:
    config = build_search(tmp_path, population={"resample": 0.0})
    random = np.random.default_rng(0)
    found = [perturb_settings(config, {RATE: 1e-3, BATCH: 8}, random) for _ in range(40)]
    assert {settings[RATE] for settings in found} == {8e-4, 1.2e-3}
    assert {settings[BATCH] for settings in found} == {8, 16}
    anew = build_search(tmp_path, population={"resample": 1.0})
    assert len({perturb_settings(anew, {RATE: 1e-3, BATCH: 8}, random)[RATE] for _ in range(10)}) == 10
