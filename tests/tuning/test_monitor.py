"""When a search stops: at its time limit, on a signal, and if all members wait without need."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fusionray.ray_cluster.progress import ProgressHandle
from fusionray.tuning import monitor as watching
from fusionray.tuning.monitor import SearchMonitor, stop_on_signals
from fusionray.tuning.records import SearchRecords
from fusionray.tuning.search import TrialSearcher
from tests.tuning.tiny_search import build_plan

pytestmark = pytest.mark.usefixtures("ray_session")

RUNNING, PAUSED, ENDED = (SimpleNamespace(status=status) for status in ("RUNNING", "PAUSED", "TERMINATED"))


def build_monitor(folder: Path, max_minutes: float | None = None) -> SearchMonitor:
    plan = build_plan(folder, max_minutes=max_minutes)
    return SearchMonitor(replace(plan, folder=str(folder)), ProgressHandle(), TrialSearcher(plan))


def test_a_search_whose_time_is_up_stops_its_trials_and_proposes_no_more(tmp_path: Path) -> None:
    SearchRecords(str(tmp_path)).write_spent(59.0)
    monitor = build_monitor(tmp_path, max_minutes=1.0)
    monitor.on_step_end(0, [RUNNING])
    assert not monitor.stop_handle.read().stop_requested
    assert not monitor.searcher.is_finished()
    monitor.spent_before = 61.0
    monitor.on_step_end(1, [RUNNING])
    assert monitor.stop_handle.read().stop_requested
    assert monitor.searcher.is_finished()
    # Running trials end by themselves with a checkpoint; paused ones have one.
    assert not monitor.stop_all()
    monitor.on_step_end(2, [ENDED, PAUSED])
    assert monitor.stop_all()
    monitor.stop_handle.close()


def test_the_time_continues_from_the_last_start(tmp_path: Path) -> None:
    SearchRecords(str(tmp_path)).write_spent(100.0)
    monitor = build_monitor(tmp_path)
    monitor.on_step_end(0, [])
    assert 100 <= SearchRecords(str(tmp_path)).spent_seconds() < 110
    monitor.stop_handle.close()


def test_a_search_stops_if_all_members_only_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STUCK_SECONDS", 0.05)
    monitor = build_monitor(tmp_path)
    monitor.on_step_end(0, [PAUSED, RUNNING])
    time.sleep(0.1)
    assert not monitor.stop_all()
    monitor.on_step_end(1, [PAUSED, ENDED])
    assert not monitor.stop_all()
    time.sleep(0.1)
    assert monitor.stop_all()
    monitor.stop_handle.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_stops_the_search_and_the_second_has_its_default_effect(
    tmp_path: Path, number: signal.Signals
) -> None:
    former = signal.getsignal(number)
    monitor = build_monitor(tmp_path)
    with stop_on_signals(monitor):
        os.kill(os.getpid(), number)
        assert monitor.signal == number
        assert signal.getsignal(number) == former
        monitor.on_step_end(0, [RUNNING])
    assert monitor.stop_handle.read().stop_requested
    assert signal.getsignal(number) == former
    monitor.stop_handle.close()
