from __future__ import annotations

from pathlib import Path

import pytest

from fusionray.benchmarks.recovery import RecoveryBenchConfig, bench_recovery
from fusionray.reporting.figures import Figures
from tests.support.tiny_bench import build_bench


@pytest.mark.slow(seconds=45)
@pytest.mark.usefixtures("ray_session")
def test_a_killed_worker_is_measured_until_its_successors_have_made_a_step(tmp_path: Path) -> None:
    tiny = build_bench(tmp_path)
    config = RecoveryBenchConfig(
        output=str(tmp_path / "out"),
        train=tiny.train,
        world=tiny.world,
        kills=1,
        # Long enough for successors to be asked for and to get ready.
        pause_seconds=(12.0, 13.0),
        checkpoint_every_images=200,
    )
    result = bench_recovery(config)
    figures = result.figures.figures
    assert 0.3 < figures["recovery_seconds_median"].value < 60
    assert figures["recovery_seconds_worst"].value == figures["recovery_seconds_median"].value
    assert figures["recovery_seconds_median"].goal == "<= 5"
    assert figures["images_repeated_worst"].value >= 0
    assert figures["successors_in_wait"].value == 1
    assert Figures.model_validate_json((tmp_path / "out" / "figures.json").read_bytes()) == result.figures
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "figures.json",
        "figures.png",
        "report.html",
        "report.md",
        "shards",
    }
