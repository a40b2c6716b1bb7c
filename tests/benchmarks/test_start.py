from __future__ import annotations

from pathlib import Path

import pytest

from fusionray.benchmarks.start import StartFigures, StartTimes, measure_start, median_of
from fusionray.errors import ServiceFailed
from fusionray.runtime.config import RuntimeConfig
from tests.support.tiny_bundle import write_tiny_bundle


def test_starts_are_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    folder = write_tiny_bundle(tmp_path / "bundle").folder
    figures = measure_start(folder, RuntimeConfig(engine="openvino", threads=1), rounds=1)
    for start in (figures.plain, figures.cold, figures.warm):
        assert 0 < start.open_seconds < start.seconds
    assert figures.warm_start_ratio == figures.warm.seconds / figures.cold.seconds
    assert figures.rounds == 1


def test_the_ratio_is_of_whole_starts_and_the_median_is_one_that_was_measured() -> None:
    starts = [StartTimes(0.1, 3.0, 0.1), StartTimes(0.1, 1.0, 0.1), StartTimes(1.5, 0.1, 0.4)]
    assert median_of(starts) == starts[2]
    figures = StartFigures(starts[0], cold=StartTimes(1, 2, 1), warm=StartTimes(0.5, 0.25, 0.25), rounds=3)
    assert figures.warm_start_ratio == 0.25


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"no bundle\.json"):
        measure_start(tmp_path, rounds=1)
