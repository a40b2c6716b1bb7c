from __future__ import annotations

import numpy as np
import pytest

from fusionray.tuning.importance import common_images, measure_importance
from fusionray.tuning.records import TrialRecord
from fusionray.tuning.space import Range
from tests.tuning.tiny_search import BATCH, RATE, build_record

SPACE = {RATE: Range(loguniform=(1e-4, 1e-2)), BATCH: Range(choice=(8, 16))}


def build_records(count: int, values: list[list[float]] | None = None) -> list[TrialRecord]:
    random = np.random.default_rng(0)
    records = []
    for number in range(count):
        settings = {key: kind.sample(random) for key, kind in SPACE.items()}
        value = float(np.log10(settings[RATE])) + 0.01 * (settings[BATCH] == 16)
        records.append(build_record(number, "finished", [value] if values is None else values[number], settings))
    return records


def test_the_setting_that_decides_has_the_largest_share() -> None:
    shares = measure_importance(SPACE, "max", build_records(12))
    assert list(shares) == [RATE, BATCH]
    assert shares[RATE] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    assert measure_importance(SPACE, "max", build_records(12)) == shares


def test_trials_are_compared_at_images_that_all_of_them_saw() -> None:
    records = [build_record(0, "stopped", [0.1, 0.2]), build_record(1, "finished", [0.1, 0.2, 0.3, 0.4])]
    assert common_images(records) == 128
    assert common_images([*records, build_record(2, "failed", [])]) == 128
    assert common_images([]) == 0


@pytest.mark.parametrize(("count", "values"), [(3, None), (6, [[0.5]] * 6), (0, None)])
def test_too_few_or_equal_trials_give_no_importance(count: int, values: list[list[float]] | None) -> None:
    assert measure_importance(SPACE, "min", build_records(count, values)) == {}
