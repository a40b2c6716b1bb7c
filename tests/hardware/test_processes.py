from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fusionray.hardware.processes import MAX_PID, ProcessName, name_this_process, started_at


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[bytes], ProcessName]]:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process, replace(name_this_process(), pid=process.pid, started=started_at(process.pid))
    process.kill()
    process.wait()


def test_a_process_is_alive_until_it_ends_even_if_it_is_not_reaped(
    child: tuple[subprocess.Popen[bytes], ProcessName],
) -> None:
    process, name = child
    assert (name.life(), name_this_process().life()) == ("alive", "alive")
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert name.life() == "dead"
    process.wait()
    assert name.life() == "dead"


def test_another_start_time_means_another_process(
    child: tuple[subprocess.Popen[bytes], ProcessName],
) -> None:
    assert replace(child[1], started="1").life() == "dead"


def test_other_machines_and_impossible_pids_are_unknown() -> None:
    name = name_this_process()
    unknown = [{"machine": "other boot/pid:[1]"}, {"machine": ""}, {"pid": 0}, {"pid": -1}, {"pid": MAX_PID + 1}]
    assert {replace(name, **changed).life() for changed in unknown} == {"unknown"}  # type: ignore[arg-type]


def test_hidden_processes_are_unknown(
    child: tuple[subprocess.Popen[bytes], ProcessName], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hide(pid: int) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("fusionray.hardware.processes.started_at", hide)
    assert child[1].life() == "unknown"


def test_without_proc_a_process_has_a_name_but_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionray.hardware.processes.PROC", tmp_path)
    name = name_this_process()
    assert (name.pid, name.machine, name.life()) == (os.getpid(), "", "unknown")
