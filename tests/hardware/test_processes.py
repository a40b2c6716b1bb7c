from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fusionray.hardware.processes import MAX_PID, ProcessKey, current_process_key, read_start_time


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[bytes], ProcessKey]]:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process, replace(current_process_key(), pid=process.pid, started=read_start_time(process.pid))
    process.kill()
    process.wait()


def test_a_zombie_counts_as_dead(
    child: tuple[subprocess.Popen[bytes], ProcessKey],
) -> None:
    process, key = child
    assert (key.liveness(), current_process_key().liveness()) == ("alive", "alive")
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert key.liveness() == "dead"
    process.wait()
    assert key.liveness() == "dead"


def test_a_reused_pid_is_another_process(
    child: tuple[subprocess.Popen[bytes], ProcessKey],
) -> None:
    assert replace(child[1], started="1").liveness() == "dead"


def test_other_boots_and_invalid_pids_are_unknown() -> None:
    key = current_process_key()
    unknown = [{"machine": "other boot/pid:[1]"}, {"machine": ""}, {"pid": 0}, {"pid": -1}, {"pid": MAX_PID + 1}]
    assert {replace(key, **changed).liveness() for changed in unknown} == {"unknown"}  # type: ignore[arg-type]


def test_a_process_that_hidepid_hides_is_unknown(
    child: tuple[subprocess.Popen[bytes], ProcessKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hide(pid: int) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("fusionray.hardware.processes.read_start_time", hide)
    assert child[1].liveness() == "unknown"


def test_without_proc_the_key_has_a_pid_but_liveness_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionray.hardware.processes.PROC", tmp_path)
    key = current_process_key()
    assert (key.pid, key.machine, key.liveness()) == (os.getpid(), "", "unknown")
