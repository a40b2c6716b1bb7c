"""Soak: clients come and go for minutes, so that replicas do, while replicas are killed, one after another."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.serve.client_pool import ClientResults, run_clients
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.servers import Server, start_service
from fusionray.errors import ServiceFailed
from fusionray.hardware.processes import PROC, find_processes

# Name that Ray gives to the process of an ingress replica.
REPLICA = "ray::ServeReplica:fusionray:Ingress"
# Soon enough that replicas go before the clients come again.
SCALING = {"ingress.min_replicas": 1, "ingress.max_replicas": 2, "ingress.downscale_delay_seconds": 10}
# All clients for the first half of a wave, one of them for the second.
WAVE_SECONDS = 120.0
SAMPLE_SECONDS = 2.0
# Growth compares the last fifth of the time with the second: memory fills in the first.
FIFTHS = 5


class ReplicaKiller:
    """Kill a replica at intervals, if there is another one, and sample the memory and the number of replicas."""

    def __init__(self, server: Server, kill_seconds: float) -> None:
        self.server = server
        self.kill_seconds = kill_seconds
        self.random = random.Random(0)  # noqa: S311 - not a secret
        self.kills = 0
        self.memory: list[float] = []
        self.replicas: list[int] = []
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
            replicas = find_replicas(self.server)
            self.replicas.append(len(replicas))
            if time.monotonic() >= next_kill and len(replicas) > 1:
                self.kill(replicas)
                next_kill += self.kill_seconds

    def kill(self, replicas: list[int]) -> None:
        """Kill one of the replicas."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.random.choice(replicas), signal.SIGKILL)
            self.kills += 1

    def count_changes(self) -> int:
        """Count how often the number of replicas changed from one sample to the next."""
        return sum(before != after for before, after in pairwise(self.replicas))


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
    changes = {**SCALING, **config.service}
    with start_service("soak", context.bundle.folder, context.form, context.logs, changes) as server:
        context.check(server)
        with ReplicaKiller(server, config.kill_seconds) as killer:
            waves = list(run_waves(server, context, 60 * config.soak_minutes))
    tick()
    if not killer.kills:
        raise ServiceFailed("the soak killed no replica; raise soak_minutes, or lower kill_seconds")
    num_requests, failed = sum(len(wave.requests) for wave in waves), sum(wave.failed for wave in waves)
    return Findings(
        values={
            "soak_failed_share": [failed / num_requests],
            "soak_wrong_answers": [float(sum(wave.wrong for wave in waves))],
            "soak_memory_growth": [measure_growth(killer.memory, killer.replicas)],
        },
        notes=[
            f"soak: {config.soak_minutes:g} min, {config.soak_clients} clients and one in turn; replicas: "
            f"{min(killer.replicas)} to {max(killer.replicas)}, {killer.count_changes()} changes of their number, "
            f"{killer.kills} killed; {num_requests} requests, {failed} failed for good, "
            f"{sum(len(wave.refused) for wave in waves)} refused at first; "
            f"memory {killer.memory[0]:.0f} MiB at the start, {killer.memory[-1]:.0f} at the end"
        ],
    )


def run_waves(server: Server, context: ServeBenchContext, seconds: float) -> Iterator[ClientResults]:
    """Run all clients and one of them in turn."""
    until = time.monotonic() + seconds
    clients = itertools.cycle((context.config.soak_clients, 1))
    while (left := until - time.monotonic()) > 0:
        yield run_clients(server, context.checker, next(clients), min(left, WAVE_SECONDS / 2))


def measure_growth(memory: list[float], replicas: list[int]) -> float:
    """Return the memory of the last fifth of the samples over that of the second, with as many replicas in both.

    Of the numbers of replicas that both have, the one with the most samples counts; if they have none in common, all.
    """
    length = max(1, len(memory) // FIFTHS)
    samples = list(zip(memory, replicas, strict=False))
    early, late = samples[length : 2 * length] or samples[:1], samples[-length:]
    counts = [Counter(number for _, number in part) for part in (early, late)]
    both = counts[0] & counts[1]
    alike = max(both, key=lambda number: both[number], default=None)
    first, last = (
        statistics.median(used for used, number in part if alike is None or number == alike) for part in (early, late)
    )
    return last / first
