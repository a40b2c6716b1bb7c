from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusionray.errors import JobNotFinished, StoreFull
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.items import ItemOutcome, JobInputs, JobItem
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.reader import JobStatus
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.jobs.worker import JobWorker, Work
from tests.serving.jobs.job_child import LEASE_SECONDS
from tests.serving.jobs.some_jobs import copy_target, make
from tests.support.child_python import ROOT
from tests.support.waiting import wait_for


@pytest.fixture
def start() -> Iterator[Callable[..., JobWorker]]:
    """Start workers; drain them at the end."""
    runners = []

    def begin(store: JobStore, work: Work, **settings: float) -> JobWorker:
        chosen = {"lease_seconds": LEASE_SECONDS, "poll_seconds": 0.02, "parallel_items": 2, **settings}
        runner = JobWorker(store, work, **chosen)  # type: ignore[arg-type]
        runner.start()
        runners.append(runner)
        return runner

    yield begin
    for runner in runners:
        runner.drain()


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def start_child(store: JobStore, log: Path, fate: str = "live") -> subprocess.Popen[bytes]:
    path = os.pathsep.join((str(ROOT / "platform"), str(ROOT)))
    command = [sys.executable, "-m", "tests.serving.jobs.job_child", str(store.jobs.parent), str(log), fate]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})


def wait_until_ended(store: JobStore, job: str, owner: str = "ann") -> JobStatus:
    wait_for(lambda: store.status(job, owner).state not in ("queued", "running"))
    return store.status(job, owner)


def read_archive(path: Path) -> tuple[dict[str, bytes], list[dict[str, object]]]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        held = {name: archive.read(name) for name in archive.namelist()}
    return held, json.loads(held.pop("results.json"))


def read_log(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_a_job_is_processed_and_its_result_has_every_item(store: JobStore, start: Callable[..., JobWorker]) -> None:
    items = []

    def work(item: JobItem) -> ItemOutcome:
        items.append(item)
        return ItemOutcome(problem={"reason": "no_face"}) if item.index == 2 else copy_target(item)

    job = make(store, num_targets=3)
    queued = store.status(job, "ann")
    assert (queued.state, queued.total, queued.done, queued.failed) == ("queued", 3, 0, 0)
    with pytest.raises(JobNotFinished, match="queued"):
        store.result(job, "ann")
    start(store, work)
    status = wait_until_ended(store, job)
    assert (status.state, status.done, status.failed, status.reason) == ("done", 2, 1, None)
    pictures, entries = read_archive(store.result(job, "ann"))
    assert pictures == {"0001.png": b"target 1", "0003.png": b"target 3"}
    assert entries == [
        {"index": 1, "status": "done", "file": "0001.png", "faces": 1},
        {"index": 2, "status": "failed", "problem": {"reason": "no_face"}},
        {"index": 3, "status": "done", "file": "0003.png", "faces": 1},
    ]
    assert {(item.owner, item.inputs.source, item.inputs.identity, item.options["faces"]) for item in items} == {
        ("ann", b"source", None, "all")
    }


def test_inputs_are_removed_when_the_job_has_ended(store: JobStore, start: Callable[..., JobWorker]) -> None:
    start(store, copy_target)
    job = make(store)
    wait_until_ended(store, job)
    # What goes last.
    wait_for(lambda: not (store.jobs / job / "secrets").exists())
    left = sorted(path.relative_to(store.jobs / job).as_posix() for path in (store.jobs / job).rglob("*"))
    assert left == ["job.json", "lease-000001", "outcome", "outcome/ended.json", "outcome/result.zip"]
    modes = {path.stat().st_mode & 0o777 for path in store.jobs.parent.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert [*store.tmp.iterdir(), *store.trash.iterdir()] == []


def test_a_job_of_a_handle_and_of_files_gets_both(
    store: JobStore, start: Callable[..., JobWorker], tmp_path: Path
) -> None:
    seen = []
    (tmp_path / "target").write_bytes(b"from a file")
    (tmp_path / "reference").write_bytes(b"a reference")
    inputs = JobInputs(identity="id_handle", consent="secret token", reference_similarity=0.5)
    new = NewJob({}, None, [tmp_path / "target"], inputs, reference=tmp_path / "reference")
    job = store.create("ann", new).status.job
    assert list(tmp_path.glob("target")) == list(tmp_path.glob("reference")) == []
    stored = [path.read_bytes() for path in (store.jobs / job).rglob("*") if path.is_file()]
    assert not any(secret in data for secret in (b"id_handle", b"secret token") for data in stored)

    def work(item: JobItem) -> ItemOutcome:
        seen.append((item.inputs.source, item.inputs.identity, item.inputs.consent, item.inputs.reference, item.target))
        return copy_target(item)

    start(store, work)
    assert wait_until_ended(store, job).state == "done"
    assert seen == [(None, "id_handle", "secret token", b"a reference", b"from a file")]
    wait_for(lambda: not (store.jobs / job / "secrets").exists())
    assert not (store.jobs / job / "reference").exists()
    assert not any(b"id_handle" in path.read_bytes() for path in (store.jobs / job).rglob("*") if path.is_file())


def test_another_worker_ends_the_job_of_a_killed_one(
    store: JobStore,
    start: Callable[..., JobWorker],
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    job, log = make(store), tmp_path / "log"
    children.append(start_child(store, log))
    wait_for(lambda: store.status(job, "ann").done >= 3)
    children[0].send_signal(signal.SIGKILL)
    children[0].wait()
    finished = JobFolder.read(store.jobs / job).progress().done
    assert 3 <= len(finished) < 12
    again = []

    def work(item: JobItem) -> ItemOutcome:
        again.append(item.index)
        return ItemOutcome(b"second " + item.target)

    # On the same machine no worker waits for the heartbeat.
    start(store, work, lease_seconds=600.0)
    status = wait_until_ended(store, job)
    assert (status.state, status.done, status.failed) == ("done", 12, 0)
    assert sorted(again) == sorted(set(range(1, 13)) - finished)
    pictures, entries = read_archive(store.result(job, "ann"))
    assert [entry["index"] for entry in entries] == list(range(1, 13))
    assert {name for name, data in pictures.items() if data.startswith(b"child")} == {
        f"{index:04d}.png" for index in finished
    }


def test_a_suspended_worker_loses_its_job_and_does_no_harm_when_it_resumes(
    store: JobStore,
    start: Callable[..., JobWorker],
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    job, log = make(store), tmp_path / "log"
    children.append(start_child(store, log))
    wait_for(lambda: store.status(job, "ann").done >= 2)
    children[0].send_signal(signal.SIGSTOP)
    start(store, copy_target)
    assert wait_until_ended(store, job).state == "done"
    before = store.result(job, "ann").read_bytes()
    children[0].send_signal(signal.SIGCONT)
    assert children[0].wait(timeout=60) == 0
    assert store.result(job, "ann").read_bytes() == before
    assert len(read_archive(store.result(job, "ann"))[1]) == 12


def test_two_workers_share_the_jobs_and_process_no_item_twice(
    store: JobStore,
    children: list[subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    jobs = [make(store, num_targets=4) for _ in range(5)]
    logs = [tmp_path / "first", tmp_path / "second"]
    children.extend(start_child(store, log) for log in logs)
    for job in jobs:
        assert wait_until_ended(store, job).done == 4
    assert all(read_log(log) for log in logs)
    assert len(read_log(logs[0]) + read_log(logs[1])) == 20


def test_a_picture_that_always_kills_its_process_fails_alone(
    store: JobStore, children: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    job, log = make(store, num_targets=5), tmp_path / "log"
    for _ in range(6):
        children.append(start_child(store, log, "die"))
        if children[-1].wait(timeout=60) == 0:
            break
    status = store.status(job, "ann")
    assert (status.state, status.done, status.failed) == ("done", 4, 1)
    assert read_archive(store.result(job, "ann"))[1][2]["problem"]["status"] == 500  # type: ignore[index]


def test_a_job_that_killed_two_processes_is_not_taken_over_at_once(
    store: JobStore, children: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    make(store, num_targets=5)
    for _ in range(2):
        children.append(start_child(store, tmp_path / "log", "die"))
        assert children[-1].wait(timeout=60) == 9
    runner = JobWorker(store, copy_target, lease_seconds=0.5)
    begun = time.monotonic()
    wait_for(lambda: runner.claim() is not None)
    assert time.monotonic() - begun >= 0.5
    runner.drain()


def test_work_that_raises_is_tried_again_before_it_fails(
    store: JobStore, start: Callable[..., JobWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusionray.serving.jobs.worker.RETRY_SECONDS", 0.01)
    tries: list[int] = []

    def work(item: JobItem) -> ItemOutcome:
        tries.append(item.index)
        if item.index == 1 or (item.index == 2 and tries.count(2) == 1):
            raise RuntimeError("model lost")
        return copy_target(item)

    job = make(store, num_targets=4)
    runner = start(store, work)
    status = wait_until_ended(store, job)
    assert (status.state, status.done, status.failed) == ("done", 3, 1)
    assert (tries.count(1), tries.count(2), tries.count(3)) == (3, 2, 1)
    assert runner.is_alive


@pytest.mark.parametrize("act", ["cancel", "remove"])
def test_running_work_stops_before_the_next_item(store: JobStore, start: Callable[..., JobWorker], act: str) -> None:
    begun, go_on, worked = threading.Semaphore(0), threading.Event(), []

    def work(item: JobItem) -> ItemOutcome:
        worked.append(item.index)
        begun.release()
        go_on.wait(30)
        return copy_target(item)

    job = make(store)
    start(store, work)
    begun.acquire(timeout=30)
    begun.acquire(timeout=30)
    assert store.status(job, "ann").state == "running"
    if act == "cancel":
        assert store.cancel(job, "ann").state == "cancelled"
    else:
        store.remove(job, "ann")
    go_on.set()
    after = make(store, num_targets=1)
    assert wait_until_ended(store, after).state == "done"
    assert len(worked) == 3
    if act == "cancel":
        assert store.status(job, "ann").state == "cancelled"
        assert store.cancel(job, "ann").state == "cancelled"
        assert not (store.jobs / job / "targets").exists()
        with pytest.raises(JobNotFinished, match="cancelled"):
            store.result(job, "ann")
    else:
        assert not (store.jobs / job).exists()


def test_a_shutdown_releases_jobs_at_once(store: JobStore, start: Callable[..., JobWorker]) -> None:
    begun, go_on, again = threading.Semaphore(0), threading.Event(), []

    def work(item: JobItem) -> ItemOutcome:
        if item.index > 4:
            begun.release()
            go_on.wait(30)
        return ItemOutcome(b"first")

    def work_again(item: JobItem) -> ItemOutcome:
        again.append(item.index)
        return ItemOutcome(b"second")

    job = make(store)
    first = start(store, work, lease_seconds=600.0)
    begun.acquire(timeout=30)
    begun.acquire(timeout=30)
    began = time.monotonic()
    first.drain()
    assert time.monotonic() - began < 20  # the work would hold it for 30 s
    assert store.status(job, "ann").state == "queued"
    start(store, work_again, lease_seconds=600.0)
    assert wait_until_ended(store, job).done == 12
    go_on.set()
    assert sorted(again) == list(range(5, 13))


def test_exactly_one_of_many_takers_gets_a_job(store: JobStore) -> None:
    runners = [JobWorker(store, copy_target) for _ in range(8)]
    for _ in range(15):
        make(store, num_targets=1)
        barrier = threading.Barrier(8)

        def claim(runner: JobWorker, barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            return runner.claim() is not None

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(claim, runners)) == 1
    for runner in runners:
        runner.drain()


def fill(path: Path) -> None:
    """Fill the disk."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_fails_the_job_with_one_clear_reason(tmp_path: Path, start: Callable[..., JobWorker]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        store = JobStore(disk / "store", 3600.0)
        job = make(store)
        filler = disk / "filler"

        def work(item: JobItem) -> ItemOutcome:
            if not ended.is_set():
                fill(filler)
            return ItemOutcome(bytes(100_000))

        ended = threading.Event()
        runner = start(store, work)
        status = wait_until_ended(store, job)
        assert (status.state, status.reason) == ("failed", "the disk of the service is full; try again later")
        with pytest.raises(JobNotFinished, match="disk"):
            store.result(job, "ann")
        ended.set()
        filler.unlink()
        with pytest.raises(StoreFull, match="No space left"):
            store.create("ann", NewJob({}, b"source", [bytes(700_000)]))
        assert list(store.tmp.iterdir()) == []
        assert wait_until_ended(store, make(store, num_targets=2)).state == "done"
        runner.drain()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
