"""A job worker in its own process: FOLDER, LOG, and the event that hits the process at item 3."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.jobs.worker import JobWorker

LEASE_SECONDS = 1.0


def run(folder: Path, log: Path, fate: str) -> None:
    def work(item: JobItem) -> ItemOutcome:
        with log.open("a") as file:
            file.write(f"{item.index}\n")
        if fate == "die" and item.index == 3:
            os._exit(9)
        time.sleep(0.1)
        assert item.target is not None
        return ItemOutcome(b"child " + item.target)

    store = JobStore(folder, 3600.0)
    runner = JobWorker(store, work, parallel_items=2, lease_seconds=LEASE_SECONDS, poll_seconds=0.1)
    runner.start()
    while store.list_open():
        time.sleep(0.05)
    runner.drain()


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
