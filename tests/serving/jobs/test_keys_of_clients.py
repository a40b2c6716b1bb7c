"""Jobs with an idempotency key, in the store that several replicas share."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusionray.errors import KeyReused
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.store import CreatedJob, JobStore
from tests.serving.identities.test_store import Clock


def build(key: str = "k", fingerprint: str = "f") -> NewJob:
    return NewJob({}, b"source", [b"target"], idempotency_key=key, fingerprint=fingerprint)


def test_of_many_requests_to_several_replicas_one_makes_the_job(tmp_path: Path) -> None:
    stores = [JobStore(tmp_path / "store", 3600.0) for _ in range(4)]

    def create(number: int) -> CreatedJob:
        return stores[number % 4].create("ann", build())

    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(create, range(32)))
    assert len({each.status.job for each in created}) == 1
    assert sum(each.is_new for each in created) == 1
    assert [*stores[0].tmp.iterdir()] == []
    assert len(stores[1].list_jobs("ann")) == 1


def test_a_key_belongs_to_its_owner_and_its_request(store: JobStore) -> None:
    first = store.create("ann", build()).status.job
    with pytest.raises(KeyReused):
        store.create("ann", build(fingerprint="other"))
    others = [store.create("bob", build(fingerprint="other")), store.create("ann", build("k2"))]
    assert len({first, *(each.status.job for each in others)}) == 3


@pytest.mark.parametrize("end", ["remove", "expire"])
def test_a_key_is_free_again_when_its_job_is_gone(tmp_path: Path, end: str) -> None:
    clock = Clock(time.time())
    store, other = (JobStore(tmp_path / "store", 100.0, wall_clock=clock) for _ in range(2))
    job = store.create("ann", build()).status.job
    store.cancel(job, "ann")
    assert [status.state for status in other.list_jobs("ann")] == ["cancelled"]
    if end == "remove":
        store.remove(job, "ann")
    clock.now += 1 if end == "remove" else 101
    again = store.create("ann", build(fingerprint="other"))
    assert (again.is_new, again.status.job, again.status.state) == (True, job, "queued")
    # What another replica remembers of the first job does not count for the second one.
    assert [status.state for status in other.list_jobs("ann")] == ["queued"]
    assert [folder.record.fingerprint for folder in other.list_open()] == ["other"]
    assert other.sweep() == 0
