from __future__ import annotations

import io
import pickle
import threading
import time
from collections.abc import Iterator

import pytest

from fusionray.ray_cluster.progress import STOP_CHECK_SECONDS, ProgressHandle, ProgressState, WorkBar, WorkerInfo
from tests.support.waiting import wait_for


@pytest.fixture
def progress(ray_session: None) -> Iterator[ProgressHandle]:
    handle = ProgressHandle()
    yield handle
    handle.close()


def test_reports_and_lines_are_returned_once(progress: ProgressHandle) -> None:
    progress.log("a line")
    progress.report(4, {"loss": 1.0})
    progress.set_completed(8, {"loss": 0.5})
    first, second = progress.read(), progress.read()
    assert (first.completed, first.postfix, first.lines, first.reports) == (
        8,
        {"loss": 0.5},
        ["a line"],
        [(4, {"loss": 1.0})],
    )
    assert (second.completed, second.postfix, second.lines, second.reports) == (8, {"loss": 0.5}, [], [])


def test_a_reply_tells_a_worker_of_a_stop_once(progress: ProgressHandle) -> None:
    worker = pickle.loads(pickle.dumps(progress))
    progress.request_stop()
    assert progress.read().stop_requested
    assert not worker.is_stop_requested()
    worker.set_completed(1, {})
    wait_for(worker.is_stop_requested)
    assert not worker.is_stop_requested()


def test_the_progress_bar_requests_a_stop_once(progress: ProgressHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[float] = []
    monkeypatch.setattr(progress, "request_stop", lambda: requests.append(time.monotonic()))
    stop_event = threading.Event()
    with progress.progress_bar("train", 8, "img", stop_event=stop_event):
        time.sleep(2 * STOP_CHECK_SECONDS)
        assert requests == []
        stop_event.set()
        wait_for(lambda: bool(requests))
        time.sleep(5 * STOP_CHECK_SECONDS)
    assert len(requests) == 1


def test_a_worker_replaces_that_of_its_rank_and_all_of_another_number_of_ranks(progress: ProgressHandle) -> None:
    for rank, num_ranks, pid in [(0, 2, 10), (1, 2, 11), (0, 2, 20)]:
        progress.add_worker(WorkerInfo(rank, num_ranks, pid, "node", 0))
    assert {rank: worker.pid for rank, worker in progress.read().workers.items()} == {0: 20, 1: 11}
    progress.add_worker(WorkerInfo(0, 1, 30, "node", 8))
    assert {rank: worker.pid for rank, worker in progress.read().workers.items()} == {0: 30}


def test_the_speed_of_a_run_that_goes_on_is_its_own() -> None:
    now = 100.0
    file = io.StringIO()
    with WorkBar(total=1000, unit="img", mininterval=0, smoothing=0, file=file) as bar:
        bar._time = lambda: now
        # Ray starts for 30 s; then two workers go on from 800 images and make 10 images/s.
        now += 30
        bar.show(ProgressState())
        workers = {rank: WorkerInfo(rank, 2, 10 + rank, "node", 800) for rank in range(2)}
        bar.show(ProgressState(workers=workers))
        assert (bar.n, bar.format_dict["rate"]) == (800, None)
        for completed in (820, 900):
            now = 130 + (completed - 800) / 10
            bar.show(ProgressState(completed=completed, workers=workers))
        assert "900/1000 [00:10<00:10, 10.00img/s]" in str(bar)
        # Workers that replace these, from a checkpoint before, do not turn the bar back.
        bar.show(ProgressState(completed=850, workers={0: WorkerInfo(0, 1, 30, "node", 840)}))
        assert bar.n == 900
