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


def test_a_process_lives_until_it_ends_whether_or_not_it_is_waited_for(
    child: tuple[subprocess.Popen[bytes], ProcessName],
) -> None:
    process, name = child
    assert (name.life(), name_this_process().life()) == ("alive", "alive")
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert name.life() == "dead"
    process.wait()
    assert name.life() == "dead"


def test_one_that_started_at_another_time_is_another(child: tuple[subprocess.Popen[bytes], ProcessName]) -> None:
    assert replace(child[1], started="1").life() == "dead"


def test_of_other_machines_and_impossible_numbers_nothing_is_known() -> None:
    name = name_this_process()
    unknown = [{"machine": "other boot/pid:[1]"}, {"machine": ""}, {"pid": 0}, {"pid": -1}, {"pid": MAX_PID + 1}]
    assert {replace(name, **changed).life() for changed in unknown} == {"unknown"}  # type: ignore[arg-type]


def test_of_processes_that_are_hidden_nothing_is_known(
    child: tuple[subprocess.Popen[bytes], ProcessName], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hide(pid: int) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("fusionray.hardware.processes.started_at", hide)
    assert child[1].life() == "unknown"


def test_where_there_is_no_proc_a_process_is_named_and_nothing_known_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionray.hardware.processes.PROC", tmp_path)
    name = name_this_process()
    assert (name.pid, name.machine, name.life()) == (os.getpid(), "", "unknown")
