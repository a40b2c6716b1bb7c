"""A runner of jobs in a process of its own: FOLDER, LOG, and what becomes of the process at item 3."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from serve.job_items import JobItem, JobOutcome
from serve.job_runner import JobRunner
from serve.job_store import JobStore

LEASE_SECONDS = 1.0


def run(folder: Path, log: Path, fate: str) -> None:
    def work(item: JobItem) -> JobOutcome:
        with log.open("a") as file:
            file.write(f"{item.index}\n")
        if fate == "die" and item.index == 3:
            os._exit(9)
        time.sleep(0.1)
        return JobOutcome(b"child " + item.target)

    store = JobStore(folder, 3600.0)
    runner = JobRunner(store, work, parallel_items=2, lease_seconds=LEASE_SECONDS, poll_seconds=0.1)
    runner.start()
    while store.list_open():
        time.sleep(0.05)
    runner.drain()


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
