"""Soak: clients at capacity while replicas are killed, one after another."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.serve.client_pool import run_clients
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.servers import Server, start_service
from fusionray.errors import ServiceFailed
from fusionray.hardware.processes import PROC, find_processes

# Name that Ray gives to the process of an ingress replica.
REPLICA = "ray::ServeReplica:fusionray:Ingress"
TWO_REPLICAS = {"ingress.num_replicas": 2}
SAMPLE_SECONDS = 2.0
# Growth compares the last fifth of the time with the second: memory fills in the first.
FIFTHS = 5


class ReplicaKiller:
    """Kill a replica at intervals, and sample the memory of the whole service."""

    def __init__(self, server: Server, kill_seconds: float) -> None:
        self.server = server
        self.kill_seconds = kill_seconds
        self.random = random.Random(0)  # noqa: S311 - not a secret
        self.kills = 0
        self.memory: list[float] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work, name="replica-killer")

    def __enter__(self) -> ReplicaKiller:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def work(self) -> None:
        """Sample and kill until the soak ends."""
        next_kill = time.monotonic() + self.kill_seconds
        while not self.ended.wait(SAMPLE_SECONDS):
            self.memory.append(measure_memory(self.server.family()))
            if time.monotonic() >= next_kill:
                self.kill()
                next_kill += self.kill_seconds

    def kill(self) -> None:
        """Kill one of the running replicas."""
        replicas = find_replicas(self.server)
        if replicas:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(replicas), signal.SIGKILL)
                self.kills += 1


def find_replicas(server: Server) -> list[int]:
    """Find the ingress replicas among the server's processes."""
    return sorted(set(find_processes(REPLICA)) & server.family())


def measure_memory(pids: set[int]) -> float:
    """Sum the memory of processes in MiB; shared pages count once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += read_share(PROC / str(pid) / "smaps_rollup")
    return total / 1024


def read_share(path: Path) -> int:
    """Read a process's proportional share of memory, kB."""
    return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("Pss:")), 0)


def measure_soak(context: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Send requests for minutes while replicas die; check every answer.

    Raises: ServiceFailed if no replica was killed.
    """
    config = context.config
    changes = {**TWO_REPLICAS, **config.service}
    with start_service("soak", context.bundle.folder, context.form, context.logs, changes) as server:
        context.check(server)
        with ReplicaKiller(server, config.kill_seconds) as killer:
            results = run_clients(server, context.checker, config.soak_clients, 60 * config.soak_minutes)
    tick()
    if not killer.kills:
        raise ServiceFailed("the soak killed no replica; raise soak_minutes, or lower kill_seconds")
    num_requests = len(results.requests)
    return Findings(
        values={
            "soak_failed_share": [results.failed / num_requests],
            "soak_wrong_answers": [float(results.wrong)],
            "soak_memory_growth": [measure_growth(killer.memory)],
        },
        notes=[
            f"soak: {config.soak_minutes:g} min, {config.soak_clients} clients, {killer.kills} replicas killed; "
            f"{num_requests} requests, {results.failed} failed for good, {len(results.refused)} refused at first; "
            f"memory {killer.memory[0]:.0f} MiB at the start, {killer.memory[-1]:.0f} at the end"
        ],
    )


def measure_growth(memory: list[float]) -> float:
    """Return the memory of the last fifth of the samples over that of the second."""
    length = max(1, len(memory) // FIFTHS)
    return statistics.median(memory[-length:]) / statistics.median(memory[length : 2 * length] or memory[:1])
