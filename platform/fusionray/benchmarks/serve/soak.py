"""Soak: clients come and go for minutes, so that replicas do; some leave before they are answered, and replicas are
killed, one after another.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Self

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.serve.client_pool import ClientResults, abandon_requests, run_clients
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.servers import Server, start_service
from fusionray.errors import ServiceFailed
from fusionray.hardware.processes import PROC, find_processes
from fusionray.serving.config_sections.limits import LEAST_DECODED_BYTES
from fusionray.serving.pipeline.memory_budget import estimate_bytes

# Name that Ray gives to the process of an ingress replica.
REPLICA = "ray::ServeReplica:fusionray:Ingress"
# Soon enough that replicas go before the clients come again.
SCALING = {"ingress.min_replicas": 1, "ingress.max_replicas": 2, "ingress.downscale_delay_seconds": 10}
# All clients for the first half of a wave, one of them for the second.
WAVE_SECONDS = 120.0
# A replica has the memory of so many pictures: others wait for it, also when their clients leave.
PICTURES_IN_MEMORY = 3
# So often come clients that leave after this time: some of their pictures are being made then, and some wait.
LEAVE_SECONDS, PATIENCE_SECONDS = 5.0, 0.3
SAMPLE_SECONDS = 2.0
# Growth compares the last fifth of the time with the second: memory fills in the first.
FIFTHS = 5


class Disturbance(ABC):
    """A thread that disturbs a service for the length of a `with` block."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.disturb, name=type(self).__name__)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    @abstractmethod
    def disturb(self) -> None:
        """Disturb the service until `ended` is set."""


class ReplicaKiller(Disturbance):
    """Kill a replica at intervals, if there is another one, and sample the memory and the number of replicas."""

    def __init__(self, server: Server, kill_seconds: float) -> None:
        super().__init__(server)
        self.kill_seconds = kill_seconds
        self.random = random.Random(0)  # noqa: S311 - not a secret
        self.kills = 0
        self.memory: list[float] = []
        self.replicas: list[int] = []

    def disturb(self) -> None:
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


class ImpatientClients(Disturbance):
    """Clients that come now and then, and leave all at once before they are answered."""

    def __init__(self, server: Server, clients: int) -> None:
        super().__init__(server)
        self.clients = clients
        self.left = 0

    def disturb(self) -> None:
        """Come and leave until the soak ends."""
        while not self.ended.wait(LEAVE_SECONDS):
            abandon_requests(self.server, self.clients, PATIENCE_SECONDS)
            self.left += self.clients


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
    largest = max(map(estimate_bytes, context.pictures.values()))
    decoded_bytes = max(LEAST_DECODED_BYTES, PICTURES_IN_MEMORY * largest)
    changes = {**SCALING, "limits.decoded_bytes": decoded_bytes, **config.service}
    with start_service("soak", context.bundle.folder, context.form, context.logs, changes) as server:
        context.check(server)
        with (
            ReplicaKiller(server, config.kill_seconds) as killer,
            ImpatientClients(server, config.soak_clients) as impatient,
        ):
            waves = list(run_waves(server, context, 60 * config.soak_minutes))
    tick()
    if not killer.kills:
        raise ServiceFailed("the soak killed no replica; raise soak_minutes, or lower kill_seconds")
    num_requests = sum(len(wave.requests) for wave in waves)
    failures = sum((wave.failures for wave in waves), Counter[int]())
    return Findings(
        values={
            "soak_failed_share": [failures.total() / num_requests],
            "soak_wrong_answers": [float(sum(wave.wrong for wave in waves))],
            "soak_memory_growth": [measure_growth(killer.memory, killer.replicas)],
        },
        notes=[
            f"soak: {config.soak_minutes:g} min, {config.soak_clients} clients and one in turn; {impatient.left} more "
            f"left before they were answered; replicas: {min(killer.replicas)} to {max(killer.replicas)}, "
            f"{killer.count_changes()} changes of their number, {killer.kills} killed; {num_requests} requests, "
            f"{failures.total()} failed for good (by status: {dict(failures)}), "
            f"{sum(len(wave.refused) for wave in waves)} refused and "
            f"{sum(wave.lost for wave in waves)} cut off at first; "
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
