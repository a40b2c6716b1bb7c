"""Processes that race for one lease while some are killed: FOLDER, KIND, NUM_KILLS. Prints its observations as JSON.

Whoever believes that it holds the lease also asks the kernel for a lock, which the death of a process frees before the
process counts as dead: if the kernel refuses, two held the lease at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

from fusionray.hardware.processes import current_process_key
from fusionray.storage.lease import Lease

NUM_PROCESSES = 6
PATIENCE_SECONDS = 60.0
# Also for a process killed after it took a number and before it wrote its key: nobody can tell that it is dead.
TIMEOUT_SECONDS = 2.0


def make_lease(folder: Path, kind: str) -> Lease:
    """Make a lease as in a job, as in the engine cache, or as in an engine cache that machines share."""
    if kind == "job":
        return Lease(folder, timeout_seconds=TIMEOUT_SECONDS)
    return Lease(folder / "lease", timeout_seconds=TIMEOUT_SECONDS, trust_living=True, owns_folder=True)


def compete(folder: Path, kind: str) -> None:
    """Take and release the lease repeatedly."""
    lease = make_lease(folder, kind)
    with (folder / "kernel").open("w") as kernel, (folder / "log").open("ab", buffering=0) as log:
        while True:
            if not lease.try_take():
                time.sleep(random.uniform(0, 0.002))
                continue
            try:
                fcntl.flock(kernel, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.write(b"2")
            log.write(b"1")
            time.sleep(random.uniform(0, 0.002))
            if not lease.renew():
                log.write(b"0")
            fcntl.flock(kernel, fcntl.LOCK_UN)
            lease.release()


def start(folder: Path, kind: str) -> int:
    pid = os.fork()
    if pid == 0:
        random.seed(os.getpid())
        key = current_process_key()
        if kind == "elsewhere":
            key = replace(key, machine=f"{os.getpid()}")
        with mock.patch("fusionray.storage.lease.current_process_key", return_value=key):
            compete(folder, kind)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def race(folder: Path, kind: str, num_kills: int) -> dict[str, object]:
    """Kill a process each time the lease was taken a few more times, and start another."""
    log = folder / "log"
    log.touch()
    pids = [start(folder, kind) for _ in range(NUM_PROCESSES)]
    is_stuck = False
    try:
        for _ in range(num_kills):
            aim, deadline = log.stat().st_size + random.randrange(1, 12), time.monotonic() + PATIENCE_SECONDS
            while log.stat().st_size < aim and not is_stuck:
                time.sleep(0.0005)
                is_stuck = time.monotonic() > deadline
            kill(pids.pop(random.randrange(len(pids))))
            pids.append(start(folder, kind))
    finally:
        for pid in pids:
            kill(pid)
    said = log.read_bytes()
    return {"taken": said.count(b"1"), "two": said.count(b"2"), "lost": said.count(b"0"), "stuck": is_stuck}


if __name__ == "__main__":
    print(json.dumps(race(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
