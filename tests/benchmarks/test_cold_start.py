from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import pytest
from tqdm import tqdm

from fusionray.benchmarks.cold_start import BAR, StartBenchConfig, bench_start, has_stepped, run_until
from fusionray.benchmarks.findings import load_keys
from fusionray.errors import TrainingFailed
from fusionray.hardware.processes import find_processes
from fusionray.reporting.figures import Figures

# A child that outlives its parent, for longer than any of these tests.
CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)', {mark!r}])\n"
STEP = """
import sys, time
sum(range(3_000_000))
sys.stderr.write("\\rtrain tiny:   0%|          | 0/64 [00:00<?, ?img/s]")
sys.stderr.flush()
time.sleep(0.3)
sys.stderr.write("\\rtrain tiny:  12%|#2        | 8/64 [00:00<00:02, 24.0img/s]")
sys.stderr.flush()
time.sleep(300)
"""
FAILURE = """
print("train tiny: begins")
print("fusionray train: data.shards: no such folder", file=sys.stderr)
sys.exit(1)
"""


def draw_bar(images: int, total: int = 2000) -> str:
    """Draw a bar as `fusionray train` does."""
    stream = io.StringIO()
    with tqdm(total=total, desc="train my-run", unit="img", file=stream, ascii=False, miniters=1, mininterval=0) as bar:
        bar.set_postfix({"loss": "0.5"}, refresh=False)
        bar.update(images)
    return stream.getvalue()


def run(code: str, folder: Path, mark: str) -> list[str]:
    """Write the command that starts a child with this mark and then runs some code."""
    script = folder / "script.py"
    script.write_text(CHILD.format(mark=mark) + code)
    return [sys.executable, str(script)]


def wait_for_end(mark: str) -> list[int]:
    """Give killed processes a moment to leave the list of processes; return those that do not."""
    deadline = time.monotonic() + 10
    while (left := find_processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.mark.parametrize(("images", "stepped"), [(0, False), (1, True), (64, True), (2000, True)])
def test_a_bar_that_has_left_zero_shows_a_step(images: int, stepped: bool) -> None:
    log = draw_bar(images)
    assert [int(found) for found in BAR.findall(log)][-1] == images
    assert has_stepped(log) is stepped


@pytest.mark.parametrize(
    "log",
    [
        "",
        "prepare:  50%|#####     | 96/192 [00:01<00:01, 80.0img/s]",
        "train my-run: worker 0 on a free core\ntraining 64/2000 images [cpu]\n",
        "train encoder:   0%|          | 0/512 [00:00<?, ?img/s]\rprepare: 100%|####| 8/8 [00:00<00:00]",
    ],
)
def test_other_lines_and_other_bars_show_no_step(log: str) -> None:
    assert not has_stepped(log)


def test_a_command_is_measured_until_its_first_step_and_then_ended_with_its_children(tmp_path: Path) -> None:
    mark = f"cold-start-{os.getpid()}-step"
    begun = time.monotonic()
    start = run_until(run(STEP, tmp_path, mark), dict(os.environ), tmp_path / "log", has_stepped)
    assert 0.3 < start.seconds <= time.monotonic() - begun
    assert 0 < start.cpu_seconds < 60
    assert "| 8/64 [" in (tmp_path / "log").read_text()
    assert wait_for_end(mark) == []


def test_a_command_that_ends_before_its_first_step_is_reported_with_its_last_line(tmp_path: Path) -> None:
    mark = f"cold-start-{os.getpid()}-failure"
    with pytest.raises(TrainingFailed, match=r"it made no step; .*: data\.shards: no such folder$") as caught:
        run_until(run(FAILURE, tmp_path, mark), dict(os.environ), tmp_path / "log", has_stepped)
    assert "\n" not in str(caught.value)
    assert wait_for_end(mark) == []


def test_a_command_that_says_nothing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="its last line is: nothing"):
        run_until([sys.executable, "-c", ""], dict(os.environ), tmp_path / "log", has_stepped)


@pytest.mark.slow(seconds=60)
@pytest.mark.usefixtures("ray_session")
def test_one_round_measures_every_key(tmp_path: Path) -> None:
    result = bench_start(StartBenchConfig(output=str(tmp_path), rounds=1))
    figures = result.figures.figures
    assert list(figures) == [*load_keys("start"), *load_keys("machine")]
    assert result.figures.not_measured == {}
    assert all(0 < figure.value < 300 for figure in figures.values())
    assert figures["help_seconds"].value < figures["serve_first_answer_seconds"].value
    assert Figures.model_validate_json((tmp_path / "figures.json").read_bytes()) == result.figures
    assert {path.name for path in tmp_path.iterdir()} == {
        "bundle-tiny-64",
        "figures.json",
        "figures.png",
        "logs",
        "report.html",
        "report.md",
    }
