from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusionray.benchmarks.findings import load_keys
from fusionray.benchmarks.train.run import bench_train
from fusionray.cli import main
from fusionray.errors import ConfigInvalid
from fusionray.reporting.figures import Figures
from fusionray.reporting.page import PAGE_NAME, TEXT_NAME
from tests.support.child_python import run_python
from tests.support.tiny_bench import build_bench

GPU_KEYS = {"gpu_amp_speedup", "gpu_memory_auto", "gpu_busy"}
WITHOUT_RAY = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "mlflow"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
from fusionray.benchmarks.train.run import main
raise SystemExit(main(sys.argv[1:]))
"""

# What every benchmark says of its machine.
MACHINE = set(load_keys("machine"))


@pytest.mark.slow(seconds=45)
def test_every_key_is_measured_or_says_why_not(tmp_path: Path, ray_session: None) -> None:
    result = bench_train(build_bench(tmp_path))
    found, missing = result.figures.figures, result.figures.not_measured
    assert set(missing) == GPU_KEYS
    assert set(missing.values()) == {"no GPU"}
    assert set(found) - MACHINE == set(load_keys("train")) - GPU_KEYS
    for key, figure in found.items():
        # Shares of a tiny step may be nothing; ratios never are.
        assert figure.value > 0 or figure.unit == "share", key
    assert 0 < found["recompute_kept_ratio"].value < 1
    output = tmp_path / "out"
    written = {"figures.json", "figures.png", PAGE_NAME, TEXT_NAME, "shards"}
    assert {path.name for path in output.iterdir()} == written
    assert Figures.model_validate_json((output / "figures.json").read_text()) == result.figures
    report = (output / TEXT_NAME).read_text()
    for title in ("Ray Train loop, shards", "two workers, one thread each", "one worker, batches in memory"):
        assert f"| {title} |" in report
    assert result.table.count("\n") == len(load_keys("train")) + len(MACHINE)


def test_the_engine_is_measured_where_ray_is_not_installed(tmp_path: Path) -> None:
    bench = build_bench(tmp_path, rounds=1)
    settings = [f"{key}={json.dumps(value)}" for key, value in bench.model_dump(exclude={"output"}).items()]
    keys = ["vs_plain_recipe", "checkpoint_step_ratio", "recompute_memory_ratio", "gpu_busy", "loop_efficiency"]
    settings.append(f"keys={json.dumps(keys)}")
    run_python("-W", "error", "-c", WITHOUT_RAY, "--output", bench.output, *settings)
    figures = Figures.model_validate_json((tmp_path / "out" / "figures.json").read_text())
    assert set(figures.figures) - MACHINE == {"vs_plain_recipe", "checkpoint_step_ratio", "recompute_memory_ratio"}
    assert figures.not_measured == {"gpu_busy": "no GPU", "loop_efficiency": "Ray is not installed"}


def test_nothing_is_measured_after_the_limit(tmp_path: Path) -> None:
    result = bench_train(build_bench(tmp_path, seconds=1e-9, keys=["vs_plain_recipe", "scaling_2"]), engine_only=True)
    assert set(result.figures.figures) == MACHINE
    assert set(result.figures.not_measured) == {"vs_plain_recipe", "scaling_2"}
    assert "raise seconds" in result.figures.not_measured["scaling_2"]


def test_an_unknown_key_is_refused_with_a_list_of_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"no key 'speed'; choose from: loop_efficiency, data_wait_share"):
        bench_train(build_bench(tmp_path, keys=["speed"]))


def test_the_command_line_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bench", "train", "--output", str(tmp_path), "--json", "--engine-only", "keys=[loop_efficiency]"]
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["not_measured"] == {"loop_efficiency": "--engine-only"}
