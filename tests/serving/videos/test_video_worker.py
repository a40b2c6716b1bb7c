"""The worker of a replica and the tasks of its cluster, of which some die: the film is that of a task that nobody
disturbed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import ray

from fusionray.bundle.description import FACE_FUSION
from fusionray.serving.config import ServeConfig
from fusionray.serving.jobs.films import FilmFolder, FilmProgress, MadeFilm
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.replicas import NodeSize
from fusionray.serving.videos.order import ORDER_NAME
from fusionray.serving.videos.task import FilmAnswer
from fusionray.serving.videos.worker import VideoWorker, choose_cpus
from tests.serving.videos.conftest import LONG_FRAMES
from tests.serving.videos.film_jobs import END_SECONDS
from tests.serving.videos.orders import (
    OWNER,
    create,
    find_tasks,
    open_store,
    start_worker,
    wait_for_film,
    wait_for_frames,
    write_config,
)
from tests.support.waiting import wait_for

MADE = MadeFilm("fused.mp4", FACE_FUSION, "tiny", "5e", 3, 4, {"source": "aa", "target": "bb"}, "cc", "dd")


@pytest.fixture
def config(ray_session: None, tmp_path: Path) -> ServeConfig:
    return write_config(tmp_path)


@pytest.fixture
def begin(config: ServeConfig) -> Iterator[Callable[[JobStore], VideoWorker]]:
    """Start workers; drain them at the end."""
    workers: list[VideoWorker] = []

    def begin_one(store: JobStore) -> VideoWorker:
        workers.append(start_worker(store, config))
        return workers[-1]

    yield begin_one
    for worker in workers:
        worker.drain()
    wait_for(lambda: not find_tasks(), END_SECONDS)


@pytest.mark.slow(seconds=60)
def test_killed_tasks_and_a_replica_that_leaves_cost_only_their_segments(
    config: ServeConfig, begin: Callable[[JobStore], VideoWorker], long_talk: Path
) -> None:
    store = open_store(config)
    whole = create(store, long_talk).record.job
    worker = begin(store)
    expected = wait_for_film(store, whole).unsigned_sha256

    job = create(store, long_talk).record.job
    film = store.find(job, OWNER).film
    assert film is not None
    for stage in ("finding", "fusing"):
        wait_for_frames(store, job, stage)
        (task,) = find_tasks()
        os.kill(task, signal.SIGKILL)
        wait_for(lambda dead=task: dead not in find_tasks(), END_SECONDS)  # type: ignore[misc]
        finished = list_finished(film)
        wait_for(lambda before=finished: len(list_finished(film)) > len(before), END_SECONDS)  # type: ignore[misc]
        assert finished.items() <= list_finished(film).items()
    wait_for_frames(store, job, "fusing")
    worker.drain()
    # The next replica does not wait for the end of the task, which leaves by itself.
    begin(store)
    made = wait_for_film(store, job)
    assert made.unsigned_sha256 == expected
    assert made.num_frames == LONG_FRAMES
    assert len(list(film.path.glob("withdrawn-*"))) <= 1


def list_finished(film: FilmFolder) -> dict[Path, int]:
    """List the finished files of segments, with the times at which they were written."""
    found = {}
    for path in film.path.glob(".*.work/*-*.*"):
        if path.suffix in (".npz", ".mp4") and not path.name.startswith("."):
            found[path] = path.stat().st_mtime_ns
    return found


def test_a_film_that_is_complete_is_not_made_again(
    config: ServeConfig, begin: Callable[[JobStore], VideoWorker], talk: Path
) -> None:
    store = open_store(config)
    folder = create(store, talk)
    job, film = folder.record.job, folder.film
    assert film is not None
    worker = begin(store)
    # The replica dies when the film is made, and before it has ended the job.
    wait_for(lambda: film.read_made() is not None, 200)
    made = film.read_made()
    wait_for_film(store, job)
    worker.drain()
    for path in ("outcome/ended.json", "results/0001.done"):
        (folder.path / path).unlink()
    (folder.path / "outcome").rmdir()
    again = open_store(config)
    begin(again)
    # Its target is gone, so nothing could be made of it now.
    assert wait_for_film(again, job) == made


@pytest.mark.parametrize(
    ("wanted", "nodes", "cpus"),
    [
        (None, [2], 1),
        (None, [1], 1),
        (None, [4, 64], 4),
        (3.0, [8], 3),
        (3.0, [2, 2], 2),
        (0.5, [2], 0.5),
        (None, [], 1),
    ],
)
def test_a_task_fits_on_a_node(wanted: float | None, nodes: list[float], cpus: float) -> None:
    assert choose_cpus(wanted, [NodeSize(number) for number in nodes]) == cpus


def test_a_job_whose_files_are_gone_fails(
    config: ServeConfig, begin: Callable[[JobStore], VideoWorker], talk: Path
) -> None:
    store = open_store(config)
    folder = create(store, talk)
    # The error of the task comes with what it was: the files of the job are no longer there.
    (folder.path / "source").unlink()
    begin(store)
    wait_for(lambda: store.status(folder.record.job, OWNER).state == "failed", END_SECONDS)
    assert "no longer there" in str(store.status(folder.record.job, OWNER).reason)


def test_a_job_that_ends_while_its_film_waits_for_cpus_leaves_nothing(
    config: ServeConfig, begin: Callable[[JobStore], VideoWorker], talk: Path, tmp_path: Path
) -> None:
    store = open_store(config)
    free, go_on = tmp_path / "free", tmp_path / "go-on"

    def keep_busy() -> None:
        free.touch()
        wait_for(go_on.exists, END_SECONDS)

    busy = ray.remote(num_cpus=ray.available_resources()["CPU"], max_retries=0)(keep_busy).remote()
    wait_for(free.exists, END_SECONDS)
    begin(store)
    folder = create(store, talk)
    job, film = folder.record.job, folder.film
    assert film is not None
    try:
        wait_for((film.path / ORDER_NAME).exists, END_SECONDS)
        assert store.status(job, OWNER).video == FilmProgress("waiting")
        store.remove(job, OWNER)
        wait_for(lambda: list(store.jobs.iterdir()) == [])
    finally:
        go_on.touch()
    ray.get(busy)
    # What waits for CPUs from now on gets them after the task of the film.
    assert ray.get(ray.remote(num_cpus=1)(lambda: 7).remote(), timeout=END_SECONDS) == 7
    wait_for(lambda: not find_tasks(), END_SECONDS)
    assert list(store.jobs.iterdir()) == []


def test_a_shutdown_does_not_wait_for_an_end_that_cannot_be_written_down(config: ServeConfig, talk: Path) -> None:
    store = open_store(config)
    folder = create(store, talk)
    assert folder.film is not None
    folder.film.write_made(MADE)
    told: list[FilmAnswer] = []

    def never_close(_: JobFolder, answer: FilmAnswer) -> Future[bool]:
        told.append(answer)
        return Future()

    worker = start_worker(store, config, never_close)
    wait_for(lambda: told, END_SECONDS)
    worker.drain()
    assert not any(thread.is_alive() for thread in worker.threads)
    assert (told[0].made, folder.is_open) == (folder.film.read_made(), True)


def test_an_end_that_does_not_count_is_told_again(config: ServeConfig, talk: Path) -> None:
    config = config.model_copy(update={"jobs": config.jobs.model_copy(update={"max_attempts": 1})})
    store = open_store(config)
    folder = create(store, talk)
    assert folder.film is not None
    folder.film.write_made(MADE)
    told: list[Future[bool]] = []

    def close_at_last(_folder: JobFolder, answer: FilmAnswer) -> Future[bool]:
        assert answer.made is not None
        told.append(Future())
        # The audit log cannot be written at first, for longer than a film that is not made has attempts.
        told[-1].set_result(len(told) > config.jobs.max_attempts + 1)
        return told[-1]

    worker = start_worker(store, config, close_at_last)
    try:
        wait_for_film(store, folder.record.job)
    finally:
        worker.drain()
    assert len(told) == config.jobs.max_attempts + 2
