from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fusionray.training.timing import profiler as profiling
from fusionray.training.timing.profiler import WARM_UP_STEPS, StepProfiler

CPU = torch.device("cpu")


def run_steps(profiler: StepProfiler, count: int) -> None:
    weight = torch.randn(16, 16)
    for _ in range(count):
        with torch.profiler.record_function("step.forward"):
            weight @ weight
        profiler.step()


def test_trace_and_summary_lie_in_the_folder_and_the_place_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    profiler = StepProfiler(str(tmp_path / "profile"), 2, device=CPU, log_line=said.append)
    run_steps(profiler, WARM_UP_STEPS + 5)
    profiler.close()
    events = json.loads((tmp_path / "profile" / "trace.json").read_text())["traceEvents"]
    recorded = [event for event in events if event.get("name") == "step.forward" and event.get("ph") == "X"]
    assert len([event for event in recorded if event.get("cat") == "user_annotation"]) == 2
    assert "aten::mm" in (tmp_path / "profile" / "summary.txt").read_text()
    assert len(said) == 1
    assert str(tmp_path / "profile") in said[0]


def test_a_large_trace_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "LARGEST_PLAIN_BYTES", 100)
    profiler = StepProfiler(str(tmp_path), 1, device=CPU, log_line=lambda line: None)
    run_steps(profiler, WARM_UP_STEPS + 1)
    assert {path.name for path in tmp_path.iterdir()} == {"trace.json.gz", "summary.txt"}


def test_a_run_that_ends_early_leaves_what_was_recorded(tmp_path: Path) -> None:
    said: list[str] = []
    profiler = StepProfiler(str(tmp_path), 5, device=CPU, log_line=said.append)
    run_steps(profiler, WARM_UP_STEPS + 2)
    profiler.close()
    assert (tmp_path / "trace.json").exists()
    assert len(said) == 1


def test_a_run_that_ends_within_the_warm_up_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    profiler = StepProfiler(str(tmp_path), 5, device=CPU, log_line=said.append)
    run_steps(profiler, 1)
    profiler.close()
    assert list(tmp_path.iterdir()) == []
    assert "nothing was recorded" in said[0]


def test_no_steps_cost_nothing_and_write_nothing(tmp_path: Path) -> None:
    profiler = StepProfiler(str(tmp_path), 0, device=CPU)
    run_steps(profiler, 3)
    profiler.close()
    assert list(tmp_path.iterdir()) == []
