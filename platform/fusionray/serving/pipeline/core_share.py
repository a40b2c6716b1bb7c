"""Replicas of a deployment on one node divide its cores: the more of them run, the less each works on at once.

Otherwise two replicas of two threads on two cores get in each other's way: they made 4.0 pictures of 4,000 px a second,
and 4.5 since each works on one at a time (docs/benchmarks.md).
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from pathlib import Path

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from fusionray.hardware.device import count_cpus

# Linux lists the sockets of a network namespace here, those without a file with an @ before their names.
SOCKET_TABLE = Path("/proc/net/unix")
COUNT_SECONDS = 1.0


class CoreShare:
    """Counts the processes of this node that hold a share with the same name, and divides the cores among them.

    A process is counted by a socket on which nothing listens: the kernel removes it however the process ends. Without
    Linux's table of sockets a process counts itself alone.
    """

    def __init__(self, name: str, num_cpus: int | None = None) -> None:
        self.prefix = f"fusionray/{name}/"
        self.num_cpus = num_cpus or count_cpus()
        self.count, self.counted_at = 1, -COUNT_SECONDS
        self.socket = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            self.socket.bind(f"\0{self.prefix}{os.getpid()}")

    def count_cores(self) -> int:
        """Return the cores of this process, at least 1. They are counted anew after a second."""
        now = time.monotonic()
        if now - self.counted_at >= COUNT_SECONDS:
            self.counted_at = now
            self.count = max(1, self.count_processes())
        return max(1, self.num_cpus // self.count)

    def limit(self, num_threads: int) -> int:
        """Return how many of a process's threads may work at once: all, or its cores if it shares them with others."""
        cores = self.count_cores()
        return num_threads if self.count == 1 else min(num_threads, cores)

    def count_processes(self) -> int:
        try:
            lines = SOCKET_TABLE.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return 1
        return sum(f" @{self.prefix}" in line for line in lines)


def share_cores() -> CoreShare | None:
    """Share the cores of this node with the other replicas of this deployment; None outside of a replica."""
    try:
        replica = serve.get_replica_context()
    except RayServeException:
        return None
    address = ray.get_runtime_context().gcs_address
    return open_share(f"{address}/{replica.app_name}/{replica.deployment}")


@functools.cache
def open_share(name: str) -> CoreShare:
    """Open the share of this process, once for all of its parts."""
    return CoreShare(name)
