"""Replicas of a deployment on one node divide its cores: the more of them run, the less each works on at once.

Otherwise they get in each other's way: two replicas on two cores, each with three threads for pictures and two for the
generator, took 484 core-ms for a picture of 4,000 px, and 429 to 469 since each works on one at a time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
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

    A process is counted by a socket on which nothing listens: the kernel removes it however the process ends. It holds
    another one while it works. Without Linux's table of sockets a process counts itself alone.
    """

    def __init__(self, name: str, num_cpus: int | None = None) -> None:
        # The name of a socket has 107 characters at most.
        share = hashlib.sha256(name.encode()).hexdigest()[:16]
        self.prefix, self.work_prefix = f"fusionray/{share}/", f"fusionray-works/{share}/"
        self.num_cpus = num_cpus or count_cpus()
        self.count, self.counted_at = 1, -COUNT_SECONDS
        self.socket = hold_name(f"{self.prefix}{os.getpid()}")
        self.lock = threading.Lock()
        self.num_working = 0
        self.work_socket: socket.socket | None = None

    def count_cores(self) -> int:
        """Return the cores of this process, at least 1. They are counted anew after a second."""
        now = time.monotonic()
        if now - self.counted_at >= COUNT_SECONDS:
            self.counted_at = now
            self.count = max(1, self.count_processes())
        return max(1, self.num_cpus // self.count)

    def has_room(self, num_running: int, num_threads: int) -> bool:
        """Tell whether one more of a process's threads may work: of all, or of as many as its cores while others work.

        The table is read only if the answer depends on it.
        """
        return num_running < num_threads and (num_running < self.count_cores() or not self.do_others_work())

    def count_processes(self) -> int:
        return len(list_names(self.prefix)) or 1

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Let the other processes know, for the length of a `with` block in any thread, that this one works."""
        with self.lock:
            self.num_working += 1
            if self.num_working == 1:
                self.work_socket = hold_name(f"{self.work_prefix}{os.getpid()}")
        try:
            yield
        finally:
            with self.lock:
                self.num_working -= 1
                if not self.num_working and self.work_socket is not None:
                    self.work_socket.close()

    def do_others_work(self) -> bool:
        """Tell whether another process works just now."""
        self.count_cores()
        return self.count > 1 and bool(list_names(self.work_prefix) - {str(os.getpid())})


def hold_name(name: str) -> socket.socket | None:
    """Open a socket whose name is in the kernel's table until it is closed; None if that fails."""
    try:
        held = socket.socket(socket.AF_UNIX)
    except OSError:
        return None
    try:
        held.bind(f"\0{name}")
    except OSError:
        held.close()
        return None
    return held


def list_names(prefix: str) -> set[str]:
    """List the names that processes of this node hold below a prefix; none without a table."""
    try:
        lines = SOCKET_TABLE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {line.rpartition(f" @{prefix}")[2] for line in lines if f" @{prefix}" in line}


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
