from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fusionray.benchmarks.findings import load_keys
from fusionray.benchmarks.serve import run as bench
from fusionray.benchmarks.serve.config import ServeBenchConfig
from fusionray.errors import InputMissing
from fusionray.reporting.figures import Figures
from tests.support.tiny_bundle import write_tiny_bundle

needs_generator = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
# Ten seconds for each start of a Ray, and seconds of load.
pytestmark = [pytest.mark.starts_ray, pytest.mark.timeout(600)]


def build_config(folder: Path, **changes: object) -> ServeBenchConfig:
    tree: dict[str, object] = {
        "output": str(folder / "out"),
        "bundle": str(write_tiny_bundle(folder / "bundle").folder),
        "competitors": str(folder / "none"),
        "clients": 2,
        "rounds": 1,
        "load_seconds": 1.0,
        "warm_up_seconds": 0.2,
        "picture_pixels": 128,
        "requests": 3,
        "batches": (1, 2),
        "saturation": (2,),
    }
    return ServeBenchConfig.model_validate(tree | changes)


@pytest.mark.slow(seconds=115)
@needs_generator
def test_a_short_run_finds_every_figure_that_needs_no_competitor(tmp_path: Path) -> None:
    parts = ("throughput", "overhead", "proxy", "overload")
    result = bench.bench_serve(build_config(tmp_path, parts=parts))
    found, missing = result.figures.figures, result.figures.not_measured
    wanted = {name for name, key in load_keys("serve").items() if key.part in parts}
    assert set(found) | set(missing) == {*wanted, *load_keys("machine")}
    assert {name for name in missing if name != "overload_refused_seconds"} == {
        name for name in wanted if name.startswith(("vs_litserve", "vs_bentoml", "vs_fastapi"))
    }
    assert "make bench-competitors" in missing["vs_fastapi_p99"]
    for name in set(found) - {"overhead_against_plain_ms"}:
        assert found[name].value > 0, name
    output = tmp_path / "out"
    assert Figures.model_validate_json((output / "figures.json").read_bytes()) == result.figures
    assert {path.name for path in output.iterdir()} == {
        "figures.json",
        "figures.png",
        "report.html",
        "report.md",
        "logs",
    }


@pytest.mark.slow(seconds=30)
@needs_generator
def test_a_soak_kills_replicas_and_checks_every_answer(tmp_path: Path) -> None:
    # Too short for replicas to come with the clients.
    two = {"ingress.min_replicas": 2}
    config = build_config(tmp_path, parts=("soak",), soak_clients=2, soak_minutes=0.2, kill_seconds=5, service=two)
    figures = bench.bench_serve(config).figures
    assert figures.not_measured == {}
    assert figures.figures["soak_wrong_answers"].value == 0
    assert 0 <= figures.figures["soak_failed_share"].value < 1
    assert figures.figures["soak_memory_growth"].value > 0


def test_without_a_load_generator_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputMissing, match="h2load is not on PATH"):
        bench.bench_serve(build_config(tmp_path))
    assert not (tmp_path / "out").exists()


@needs_generator
def test_nothing_is_measured_after_the_limit(tmp_path: Path) -> None:
    result = bench.bench_serve(build_config(tmp_path, parts=("overhead",), seconds=1e-9))
    assert set(result.figures.figures) == set(load_keys("machine"))
    assert "raise seconds" in result.figures.not_measured["overhead_ms"]
