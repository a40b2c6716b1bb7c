"""The worker of a replica and the tasks of its cluster, of which some die: the film is that of a task that nobody
disturbed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusionray.serving.config import ServeConfig
from fusionray.serving.jobs.films import FilmFolder
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.replicas import NodeSize
from fusionray.serving.videos.worker import VideoWorker, choose_cpus
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
    wait_for(lambda: not find_tasks())


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
        finished = {
            path: path.stat().st_mtime_ns for path in film.path.glob(".*.work/*-*.*") if "part" not in path.name
        }
        (task,) = find_tasks()
        os.kill(task, signal.SIGKILL)
        wait_for(lambda dead=task: find_tasks() not in ([dead], []))  # type: ignore[misc]
        assert {path: path.stat().st_mtime_ns for path in finished} == finished
    wait_for_frames(store, job, "fusing")
    worker.drain()
    # The next replica does not wait for the end of the task, which leaves by itself.
    begin(store)
    made = wait_for_film(store, job)
    assert made.unsigned_sha256 == expected
    assert made.num_frames == 400
    assert len(list(film.path.glob("withdrawn-*"))) <= 1


def list_finished(film: FilmFolder) -> dict[Path, int]:
    """List the finished files of segments, with the times at which they were written."""
    found = {}
    for path in film.path.glob(".*.work/*-*.*"):
        if path.suffix in (".npz", ".mp4"):
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
