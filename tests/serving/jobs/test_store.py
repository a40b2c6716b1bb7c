from __future__ import annotations

import json
import math
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Thread

import pytest

from fusionray.errors import QuotaExceeded, StoreFull, UnknownJob
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.items import ItemOutcome
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.record import JobOutcome, JobRecord
from fusionray.serving.jobs.store import JobStore
from tests.serving.identities.test_store import Clock
from tests.serving.jobs.some_jobs import copy_target, make


def test_of_two_outcomes_at_the_same_time_the_first_stays(store: JobStore) -> None:
    folder = JobFolder.read(store.jobs / make(store))
    drafts = [store.tmp / name for name in ("first", "second")]
    for draft in drafts:
        draft.mkdir()
        (draft / "ended.json").write_text(json.dumps({"state": "done", "done": 1, "failed": 0, "ended_at": 1.0}))
        (draft / draft.name).touch()
    assert [folder.publish(draft) for draft in drafts] == [True, False]
    assert (folder.path / "outcome" / "first").exists()
    assert list(store.tmp.iterdir()) == []


def test_what_was_finished_first_stays(store: JobStore) -> None:
    folders = [JobFolder.read(store.jobs / make(store)) for _ in range(3)]
    for folder in folders:
        folder.write_result(1, copy_target(folder.read_item(1, folder.read_inputs(store.key))))
        folder.write_result(1, ItemOutcome(problem={}))
        assert (folder.progress().done, folder.progress().failed) == ({1}, frozenset())
    assert [folders[0].finish(), folders[0].end("failed", "x"), folders[0].finish()] == [True, False, False]
    assert [folders[1].end("cancelled"), folders[1].end("failed", "x")] == [True, False]
    (folders[2].path / "reserve").rename(store.tmp / "taken")
    assert folders[2].end("failed", "y" * 5000)
    ended = [folder.ended for folder in folders]
    assert [end and end.state for end in ended] == ["done", "cancelled", "failed"]


@pytest.mark.parametrize(
    "job", ["", "..", "job_", "job_../../tmp", "job_" + "g" * 32, "job_" + "0" * 32, "job_" + "0" * 32 + "\n"]
)
def test_an_id_that_was_never_issued_is_unknown(store: JobStore, job: str) -> None:
    make(store)
    for act in (store.status, store.result, store.cancel, store.remove):
        with pytest.raises(UnknownJob):
            act(job, "ann")


def test_an_id_only_leads_to_jobs(store: JobStore) -> None:
    job = make(store)
    shutil.copytree(store.jobs / job, store.tmp / "planted")
    for strange in ("../tmp/planted", f"../jobs/{job}", f"{job}/", f"./{job}"):
        with pytest.raises(UnknownJob):
            store.status(strange, "ann")


def test_another_owner_sees_and_touches_nothing(store: JobStore) -> None:
    job = make(store)
    for act in (store.status, store.result, store.cancel, store.remove):
        with pytest.raises(UnknownJob) as caught:
            act(job, "bob")
        with pytest.raises(UnknownJob, match=str(caught.value)):
            act("job_" + "0" * 32, "bob")
    assert store.list_jobs("bob") == []
    assert [status.job for status in store.list_jobs("ann")] == [job]


def test_jobs_expire_and_half_written_ones_are_swept(tmp_path: Path) -> None:
    wall = Clock(time.time() - 99)
    store = JobStore(tmp_path / "store", 100.0, wall_clock=wall)
    job = make(store)
    old, young = store.tmp / "job_old", store.tmp / "job_young"
    for draft in (old, young):
        (draft / "targets").mkdir(parents=True)
    os.utime(old, (0, 0))
    open_job = make(store)
    store.cancel(job, "ann")
    wall.now = time.time()
    other = make(store)
    assert store.sweep() == 0
    assert (old.exists(), young.exists()) == (False, True)
    store.cancel(other, "ann")
    wall.now += 102
    with pytest.raises(UnknownJob):
        store.status(job, "ann")
    assert store.sweep() == 2
    assert {path.name for path in store.jobs.iterdir()} == {open_job}
    # Long work waits as long as it must: only what has ended expires.
    assert (store.status(open_job, "ann").state, store.status(open_job, "ann").expires_at) == ("queued", math.inf)


def test_a_torn_outcome_is_a_failed_job_and_harms_no_other(store: JobStore) -> None:
    torn, other = JobFolder.read(store.jobs / make(store)), make(store)
    torn.end("cancelled")
    # What a machine without power may leave: the reserve, renamed before it was written.
    (torn.path / "outcome" / "ended.json").write_bytes(b" " * 1024)
    fresh = JobStore(store.jobs.parent, 100.0)
    assert fresh.status(torn.record.job, "ann").state == "failed"
    assert "outcome is damaged" in str(fresh.status(torn.record.job, "ann").reason)
    assert [folder.record.job for folder in fresh.list_open()] == [other]
    assert [folder.record.job for folder in fresh.list_ended()] == [torn.record.job]
    assert fresh.sweep() == 0
    make(fresh)


def test_a_stray_file_is_no_job(store: JobStore) -> None:
    job = make(store)
    (store.jobs / ".DS_Store").write_bytes(b"x")
    assert [folder.record.job for folder in store.list_open()] == [job]
    assert store.sweep() == 0
    make(store)


def test_an_attempt_at_a_removed_job_does_not_bring_it_back(store: JobStore) -> None:
    folder = JobFolder.read(store.jobs / make(store))
    assert [folder.record_attempt(1), folder.record_attempt(1)] == [0, 1]
    store.remove(folder.record.job, "ann")
    with pytest.raises(FileNotFoundError):
        folder.record_attempt(1)
    assert list(store.jobs.iterdir()) == []


def test_a_thread_that_learns_of_an_end_waits_for_one_that_lists_the_jobs(store: JobStore) -> None:
    known, other = (JobFolder.read(store.jobs / make(store)) for _ in range(2))
    for folder in (known, other):
        folder.end("cancelled")
    index = store.index

    class Met(dict[tuple[str, float], JobOutcome]):
        """What is known of ended jobs, of which another thread learns one more during a walk through it."""

        def __iter__(self) -> Iterator[tuple[str, float]]:
            for key in super().__iter__():
                learner.start()
                learner.join(0.3)
                yield key

    learner = Thread(target=index.count_bytes, args=(other,))
    index.find_ended(known)
    index.ended = Met(index.ended)
    assert len(index.scan()) == 2
    learner.join()
    assert index.ended.keys() == {known.record.identity, other.record.identity}


def test_too_many_jobs_are_refused(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "store", 100.0, max_jobs=3, max_open_jobs=2, max_bytes=10_000)
    jobs = [make(store), make(store)]
    with pytest.raises(QuotaExceeded, match="2 jobs of this key are not finished"):
        make(store)
    with pytest.raises(StoreFull, match="of at most 3 with 10000 bytes"):
        store.create("bob", NewJob({}, b"source", [bytes(9900)]))
    store.cancel(jobs[0], "ann")
    make(store)
    with pytest.raises(StoreFull, match="3 jobs with"):
        make(store, "bob")
    store.remove(jobs[0], "ann")
    make(store, "bob")


def test_results_count_for_the_size_of_the_store(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "store", 100.0, max_bytes=20_000)
    status = store.create("ann", NewJob({}, b"source", [bytes(1000)])).status
    folder = JobFolder.read(store.jobs / status.job)
    folder.write_result(1, ItemOutcome(random.Random(0).randbytes(12_000), "jpg"))
    folder.finish()
    assert store.status(status.job, "ann").state == "done"
    with pytest.raises(StoreFull):
        store.create("ann", NewJob({}, b"source", [bytes(4000)]))
    store.create("ann", NewJob({}, b"source", [bytes(3000)]))


def test_owners_of_open_jobs_take_turns(store: JobStore) -> None:
    jobs = {name: make(store, owner) for name, owner in {"a1": "ann", "a2": "ann", "b1": "bob", "a3": "ann"}.items()}
    order = [folder.record.job for folder in store.list_open()]
    assert order == [jobs[name] for name in ("a1", "b1", "a2", "a3")]


def test_thousands_of_jobs_are_listed_fast(store: JobStore) -> None:
    for number in range(3000):
        record = JobRecord(f"job_{number:032x}", "ann" if number % 10 else "bob", {}, 5, 9, 1.0 + time.time())
        folder = store.jobs / record.job
        (folder / "results").mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps(asdict(record)))
    store.list_open()
    began = time.process_time()
    assert len(store.list_jobs("bob", 300)) == 300
    assert len(store.list_open()) == 3000
    assert time.process_time() - began < 3.0
