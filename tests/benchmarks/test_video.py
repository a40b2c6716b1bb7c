from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fusionray.benchmarks.findings import load_keys
from fusionray.benchmarks.video.config import PARTS, VideoBenchConfig
from fusionray.benchmarks.video.run import MEASURES, bench_video
from fusionray.benchmarks.video.steadiness import accelerate, count_reverted
from tests.support.tiny_bundle import write_tiny_bundle


def test_each_part_has_keys_and_a_measure() -> None:
    assert set(MEASURES) == set(PARTS) == {key.part for key in load_keys("video").values()}


def test_frames_that_show_the_original_are_counted() -> None:
    random = np.random.default_rng(0)
    before = [random.integers(0, 255, (40, 40, 3), np.uint8) for _ in range(10)]
    after = [255 - frame for frame in before]
    after[3], after[7] = before[3], before[7] ^ 1
    points = np.tile(np.array([[10, 10], [30, 10], [20, 20], [12, 30], [28, 30]], np.float32), (10, 1, 1))
    assert count_reverted(before, after, points) == (2, 10)


def test_a_shake_of_points_is_an_acceleration() -> None:
    still = np.tile(np.arange(20, dtype=np.float64)[:, None, None], (1, 5, 2))
    assert accelerate(still) == 0
    shaken = still + np.array([0.5, -0.5])[np.arange(20) % 2][:, None, None]
    assert accelerate(shaken) == pytest.approx(2 * math.sqrt(2))


@pytest.mark.slow(seconds=60)
@pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")
def test_every_key_is_measured_on_a_small_film(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "tiny").folder
    config = VideoBenchConfig(
        output=str(tmp_path / "bench"),
        bundle=str(bundle),
        width=320,
        height=240,
        frames=100,
        long_repeats=3,
        rounds=1,
    )
    result = bench_video(config)
    assert result.figures.not_measured == {}
    assert set(result.figures.figures) == {*load_keys("video"), *load_keys("machine")}
    assert result.figures.figures["follow_recall"].value == 1
    assert result.figures.figures["reverted_frames_per_1000"].value == 0
    assert (tmp_path / "bench" / "report.html").exists()
