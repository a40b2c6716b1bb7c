"""Hours in minutes: clients at capacity while replicas are killed, one after another."""

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
from fusionray.benchmarks.serve.client_pool import gather
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.servers import Server, start_service
from fusionray.errors import ServiceFailed
from fusionray.hardware.processes import PROC, find_processes

# How Ray names the process of a replica of the ingress.
REPLICA = "ray::ServeReplica:fusionray:Ingress"
TWO_REPLICAS = {"ingress.num_replicas": 2}
SAMPLE_SECONDS = 2.0
# Growth is the last fifth of the time against the second: in the first, memory fills for the first time.
FIFTHS = 5


class ReplicaKiller:
    """Kill a replica every so often, and note how much memory the whole service takes."""

    def __init__(self, server: Server, kill_seconds: float) -> None:
        self.server = server
        self.kill_seconds = kill_seconds
        self.random = random.Random(0)  # noqa: S311 - who is killed is no secret
        self.kills = 0
        self.memory: list[float] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work, name="tormentor")

    def __enter__(self) -> ReplicaKiller:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def work(self) -> None:
        """Go on until the soak ends."""
        next_kill = time.monotonic() + self.kill_seconds
        while not self.ended.wait(SAMPLE_SECONDS):
            self.memory.append(measure_memory(self.server.family()))
            if time.monotonic() >= next_kill:
                self.kill()
                next_kill += self.kill_seconds

    def kill(self) -> None:
        """Kill one of the replicas that stand now."""
        replicas = find_replicas(self.server)
        if replicas:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(replicas), signal.SIGKILL)
                self.kills += 1


def find_replicas(server: Server) -> list[int]:
    """Find the ingress replicas among what this server started."""
    return sorted(set(find_processes(REPLICA)) & server.family())


def measure_memory(pids: set[int]) -> float:
    """Sum up the memory of processes in MiB, what they share counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += read_share(PROC / str(pid) / "smaps_rollup")
    return total / 1024


def read_share(path: Path) -> int:
    """Read a process's proportional share of memory, kB."""
    return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("Pss:")), 0)


def measure_soak(scene: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Ask for minutes on end while replicas die; every answer is looked at.

    Raises: ServiceFailed if no replica could be found to kill.
    """
    config = scene.config
    changes = {**TWO_REPLICAS, **config.service}
    with start_service("soak", scene.bundle.folder, scene.form, scene.logs, changes) as server:
        scene.check(server)
        with ReplicaKiller(server, config.kill_seconds) as tormentor:
            crowd = gather(server, scene.checker, config.soak_clients, 60 * config.soak_minutes)
    tick()
    if not tormentor.kills:
        raise ServiceFailed("the soak killed no replica; make it longer than kill_seconds")
    asks = len(crowd.asks)
    return Findings(
        values={
            "soak_failed_share": [crowd.failed / asks],
            "soak_wrong_answers": [float(crowd.wrong)],
            "soak_memory_growth": [measure_growth(tormentor.memory)],
        },
        notes=[
            f"soak: {config.soak_minutes:g} min, {config.soak_clients} clients, {tormentor.kills} replicas killed; "
            f"{asks} requests, {crowd.failed} failed for good, {len(crowd.refused)} refused at first; memory "
            f"{tormentor.memory[0]:.0f} MiB at the start, {tormentor.memory[-1]:.0f} at the end"
        ],
    )


def measure_growth(memory: list[float]) -> float:
    """Divide the memory of the last fifth of the samples by that of the second."""
    length = max(1, len(memory) // FIFTHS)
    return statistics.median(memory[-length:]) / statistics.median(memory[length : 2 * length] or memory[:1])
