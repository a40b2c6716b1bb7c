"""When a search is told to end: by its clock, by a signal, and where everybody waits for nobody."""

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
from fusionray.tuning.monitor import Watch, signals_end
from fusionray.tuning.records import Records
from fusionray.tuning.search import TrialSearcher
from tests.tuning.tiny_search import build_plan

pytestmark = pytest.mark.usefixtures("ray_session")

RUNNING, PAUSED, ENDED = (SimpleNamespace(status=status) for status in ("RUNNING", "PAUSED", "TERMINATED"))


def build_watch(folder: Path, max_minutes: float | None = None) -> Watch:
    plan = build_plan(folder, max_minutes=max_minutes)
    return Watch(replace(plan, folder=str(folder)), ProgressHandle(), TrialSearcher(plan))


def test_a_search_whose_time_is_up_tells_its_trials_and_proposes_no_more(tmp_path: Path) -> None:
    Records(str(tmp_path)).write_spent(59.0)
    watch = build_watch(tmp_path, max_minutes=1.0)
    watch.on_step_end(0, [RUNNING])
    assert not watch.halting.look().halted
    assert not watch.proposals.is_finished()
    watch.spent_before = 61.0
    watch.on_step_end(1, [RUNNING])
    assert watch.halting.look().halted
    assert watch.proposals.is_finished()
    # Those that run end by themselves, with a checkpoint; those that pause have one.
    assert not watch.stop_all()
    watch.on_step_end(2, [ENDED, PAUSED])
    assert watch.stop_all()
    watch.halting.close()


def test_the_clock_goes_on_where_the_last_start_stopped(tmp_path: Path) -> None:
    Records(str(tmp_path)).write_spent(100.0)
    watch = build_watch(tmp_path)
    watch.on_step_end(0, [])
    assert 100 <= Records(str(tmp_path)).spent_seconds() < 110
    watch.halting.close()


def test_members_that_wait_for_nobody_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STUCK_SECONDS", 0.05)
    watch = build_watch(tmp_path)
    watch.on_step_end(0, [PAUSED, RUNNING])
    time.sleep(0.1)
    assert not watch.stop_all()
    watch.on_step_end(1, [PAUSED, ENDED])
    assert not watch.stop_all()
    time.sleep(0.1)
    assert watch.stop_all()
    watch.halting.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_ends_the_search_and_the_second_one_is_as_ever(tmp_path: Path, number: signal.Signals) -> None:
    former = signal.getsignal(number)
    watch = build_watch(tmp_path)
    with signals_end(watch):
        os.kill(os.getpid(), number)
        assert watch.signal == number
        assert signal.getsignal(number) == former
        watch.on_step_end(0, [RUNNING])
    assert watch.halting.look().halted
    assert signal.getsignal(number) == former
    watch.halting.close()
