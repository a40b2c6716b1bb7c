"""Orders: which task may work, when it must leave, and that it leaves no trace of a job that is gone."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fusionray.errors import VideoRejected
from fusionray.serving.config import ServeConfig
from fusionray.serving.jobs.films import FilmFolder
from fusionray.serving.videos.progress import ProgressWriter, Withdrawn
from fusionray.serving.videos.task import make_film, watch
from tests.serving.videos.orders import OWNER, create, is_left, open_store, order, write_config
from tests.support.waiting import wait_for


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    return write_config(tmp_path)


def test_of_two_orders_the_newer_one_counts(config: ServeConfig, talk: Path) -> None:
    folder = create(open_store(config), talk)
    first = order(folder, config)
    assert not first.is_withdrawn()
    second = order(folder, config)
    assert (first.is_withdrawn(), second.is_withdrawn()) == (True, False)
    first.withdraw()
    assert not second.is_withdrawn()
    second.withdraw()
    second.withdraw()
    assert second.is_withdrawn()


@pytest.mark.parametrize("end", ["cancel", "remove"])
def test_a_task_that_waited_for_cpus_beyond_the_end_of_its_job_leaves_without_a_trace(
    config: ServeConfig, talk: Path, end: str
) -> None:
    store = open_store(config)
    folder = create(store, talk)
    placed = order(folder, config)
    getattr(store, end)(folder.record.job, OWNER)
    before = sorted(Path(config.jobs.folder).rglob("*"))
    assert is_left(make_film(placed, config, 1))
    placed.withdraw()
    assert sorted(Path(config.jobs.folder).rglob("*")) == before


def test_a_removed_job_that_is_created_anew_has_another_folder(config: ServeConfig, talk: Path) -> None:
    store = open_store(config)
    first = create(store, talk)
    placed = order(first, config)
    store.remove(first.record.job, OWNER)
    second = create(store, talk)
    # As an idempotency key allows.
    second.path.rename(first.path)
    assert placed.is_withdrawn()
    assert is_left(make_film(placed, config, 1))
    assert [path.name for path in first.path.glob("film-*")] == [second.record.film]


def test_an_order_that_is_withdrawn_stops_the_work(config: ServeConfig, talk: Path) -> None:
    placed, stop = order(create(open_store(config), talk), config), threading.Event()
    with watch(placed, stop):
        assert not stop.is_set()
        placed.withdraw()
        wait_for(stop.is_set)


HANGING = """
import sys, threading, time
from pathlib import Path
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.videos import task
from fusionray.serving.videos.order import VideoOrder
task.LEAVE_SECONDS = 0.2
folder = JobFolder.read(Path(sys.argv[1]))
order = VideoOrder(sys.argv[2], folder, ModelVersion("a", "b", "c"))
print("it works", flush=True)
with task.watch(order, threading.Event()):
    time.sleep(600)
"""


def test_a_task_that_hangs_ends_its_process(config: ServeConfig, talk: Path) -> None:
    folder = create(open_store(config), talk)
    placed = order(folder, config)
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, str(folder.path), placed.token], stdout=subprocess.PIPE, text=True
    ) as hanging:
        try:
            assert hanging.stdout is not None
            assert hanging.stdout.readline() == "it works\n"
            placed.withdraw()
            assert hanging.wait(60) == 1
        finally:
            hanging.kill()


def test_the_attempts_at_a_film_are_counted_before_the_work(config: ServeConfig, talk: Path) -> None:
    folder = create(open_store(config), talk)
    assert folder.film is not None
    for number in range(config.jobs.max_attempts):
        assert folder.film.record_attempt() == number
    answer = make_film(order(folder, config), config, 1)
    assert answer.problem is not None
    assert (answer.problem.status, answer.problem.reason) == (500, "internal")
    assert "again and again" in answer.problem.detail


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def film(tmp_path: Path) -> FilmFolder:
    (tmp_path / "film").mkdir()
    return FilmFolder(tmp_path / "film")


def test_progress_has_the_speed_of_late_and_the_time_that_is_left(film: FilmFolder) -> None:
    clock = Clock()
    progress = ProgressWriter(film, threading.Event(), 1000, clock)
    assert film.read_progress().stage == "waiting"
    with progress("find faces", 100, 20) as advance:
        assert (film.read_progress().stage, film.read_progress().done) == ("finding", 20)
        clock.now += 2
        advance(10)
        told = film.read_progress()
        assert (told.done, told.total, told.frames_per_second, told.seconds_left) == (30, 100, 5, 14)
        # Ten frames a second from now on: after a while, only that counts.
        for _ in range(50):
            clock.now += 1
            advance(1)
        assert film.read_progress().frames_per_second == 1
    with progress("fuse", 100, 0):
        assert (film.read_progress().stage, film.read_progress().frames_per_second) == ("fusing", None)
    assert film.read_progress().stage == "joining"


def test_progress_ends_the_work_on_a_film_that_is_withdrawn_or_longer_than_it_says(film: FilmFolder) -> None:
    stop = threading.Event()
    progress = ProgressWriter(film, stop, 1000)
    with pytest.raises(VideoRejected, match="1001 frames") as refused, progress("find faces", 1001, 0):
        pass
    assert refused.value.reason == "too_long"
    stop.set()
    with pytest.raises(Withdrawn), progress("fuse", 100, 0) as advance:
        advance(1)
