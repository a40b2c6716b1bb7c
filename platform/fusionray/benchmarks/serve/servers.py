"""Servers as processes: start them, wait for them, and stop them with all their children."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusionray.benchmarks.serve.clients import Client, ServerAnswer
from fusionray.benchmarks.serve.inputs import Body
from fusionray.benchmarks.serve.load import OK
from fusionray.errors import ServiceFailed
from fusionray.hardware.processes import add_descendants, list_processes, measure_cpu
from fusionray.ray_cluster.connection import find_free_port

HOST = "127.0.0.1"
FUSE_PATH = "/v1/fuse"
START_SECONDS = 120.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
# An idle Ray uses a tenth of a core.
IDLE_CORES = 0.3
# Several idle samples are needed: on a busy machine, a single one may only show that the server waited for a core.
SETTLE_POLL_SECONDS, SETTLE_SECONDS, IDLE_SAMPLES = 0.5, 30.0, 3
# Folder of the packages: all servers run the same code, in whichever environment.
PACKAGE_ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Server:
    """A running server: the body of its requests, its process, and all processes that this one started."""

    name: str
    port: int
    body: Body
    process: subprocess.Popen[bytes]
    log: Path
    pids: set[int] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Return the URL to load."""
        return f"http://{HOST}:{self.port}{FUSE_PATH}"

    def client(self) -> Client:
        """Make a client of the server."""
        return Client(HOST, self.port, FUSE_PATH, self.body)

    def family(self) -> set[int]:
        """List the server's processes, including those that it detached."""
        processes = list_processes()
        self.pids = add_descendants({self.process.pid, *self.pids}, processes) & processes.keys()
        return self.pids

    def wait(self) -> ServerAnswer:
        """Wait for the first picture.

        Raises: ServiceFailed with the last line of the log.
        """
        deadline = time.monotonic() + START_SECONDS
        answered = "nothing"
        while time.monotonic() < deadline and self.process.poll() is None:
            client = self.client()
            answer = client.ask()
            client.close()
            if answer.status == OK:
                self.family()
                return answer
            answered = f"{answer.status} {answer.data[:200].decode(errors='replace')}"
            time.sleep(POLL_SECONDS)
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["nothing"]
        raise ServiceFailed(f"{self.name} answered {answered}; its last line is: {lines[-1][:300]}; see {self.log}")

    def settle(self) -> None:
        """Wait until the server is idle, for 30 s at most: it may still work on requests of clients that have left."""
        deadline = time.monotonic() + SETTLE_SECONDS
        used, idle = measure_cpu(self.family()), 0
        while idle < IDLE_SAMPLES and time.monotonic() < deadline:
            time.sleep(SETTLE_POLL_SECONDS)
            before, used = used, measure_cpu(self.family())
            idle = idle + 1 if used - before < IDLE_CORES * SETTLE_POLL_SECONDS else 0

    def stop(self) -> None:
        """Terminate the server, and kill those of its processes that do not end."""
        family = self.family()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        for pid in family & list_processes().keys():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def start(
    name: str,
    command: Sequence[str],
    body: Body,
    port: int,
    logs: Path,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[Server]:
    """Run a server for the length of a `with` block, which starts with its first answer.

    Raises: ServiceFailed.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{name}.log"
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), **(environment or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - its own settings, no shell
            list(command), stdout=output, stderr=subprocess.STDOUT, env=variables, cwd=folder, start_new_session=True
        )
    server = Server(name, port, body, process, log)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


@contextmanager
def start_service(
    name: str,
    bundle: Path,
    body: Body,
    logs: Path,
    changes: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run `fusionray serve` with a Ray cluster of its own.

    Raises: ServiceFailed.
    """
    port = find_free_port()
    with ray_folder() as own:
        stores = {f"{store}.folder": f"{own['RAY_TMPDIR']}/{store}" for store in ("identities", "jobs")}
        settings = [f"{key}={json.dumps(value)}" for key, value in {**stores, **changes}.items()]
        command = ["-m", "fusionray.cli", "serve", "--bundle", str(bundle), "--port", str(port), *settings]
        variables = {**own, **(environment or {})}
        with start(name, [sys.executable, *command], body, port, logs, environment=variables) as server:
            yield server


@contextmanager
def ray_folder() -> Iterator[dict[str, str]]:
    """Make a temporary folder for a Ray cluster; a socket's path in it may have 107 characters."""
    folder = tempfile.mkdtemp(prefix="fr-")
    try:
        yield {"RAY_TMPDIR": folder, "RAY_ADDRESS": ""}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
