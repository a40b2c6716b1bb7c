"""Jobs whose pictures are arbitrary bytes, which nothing decodes."""

from __future__ import annotations

from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.store import JobStore

TARGETS = [b"target %d" % number for number in range(1, 13)]


def copy_target(item: JobItem) -> ItemOutcome:
    assert item.target is not None
    return ItemOutcome(item.target, details={"faces": 1})


def make(store: JobStore, owner: str = "ann", num_targets: int = 12) -> str:
    return store.create(owner, NewJob({"faces": "all"}, b"source", TARGETS[:num_targets])).status.job
