"""Servers as processes: started, waited for, and taken away with everything that they started."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusionray.benchmarks.serve.clients import Answer, Client
from fusionray.benchmarks.serve.inputs import Body
from fusionray.benchmarks.serve.load import OK
from fusionray.errors import ServiceFailed
from fusionray.hardware.processes import add_descendants, list_processes, measure_cpu

HOST = "127.0.0.1"
FUSE_PATH = "/v1/fuse"
START_SECONDS = 120.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.2
# A Ray that has nothing to do uses a tenth of a core.
IDLE_CORES = 0.3
# One quiet look is not enough: on a busy machine it may only have waited for a core.
SETTLE_POLL_SECONDS, SETTLE_SECONDS, QUIET_LOOKS = 0.5, 30.0, 3
# Where this package lies: servers are to run the same code, in whichever environment.
PACKAGE_ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Server:
    """A server that runs: what it is asked, its process, and all that this one started."""

    name: str
    port: int
    body: Body
    process: subprocess.Popen[bytes]
    log: Path
    pids: set[int] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Give the address that a load is applied to."""
        return f"http://{HOST}:{self.port}{FUSE_PATH}"

    def client(self) -> Client:
        """Make a client of it."""
        return Client(HOST, self.port, FUSE_PATH, self.body)

    def family(self) -> set[int]:
        """List the processes that belong to it; those that it let go are remembered."""
        processes = list_processes()
        self.pids = add_descendants({self.process.pid, *self.pids}, processes) & processes.keys()
        return self.pids

    def wait(self) -> Answer:
        """Wait for its first picture.

        Raises: ServiceFailed with the last line that it said.
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
        raise ServiceFailed(f"{self.name} answered {answered} and said {lines[-1][:300]}; see {self.log}")

    def settle(self) -> None:
        """Wait until it has worked off what it still holds of clients who are gone, 30 s at most."""
        deadline = time.monotonic() + SETTLE_SECONDS
        used, quiet = measure_cpu(self.family()), 0
        while quiet < QUIET_LOOKS and time.monotonic() < deadline:
            time.sleep(SETTLE_POLL_SECONDS)
            before, used = used, measure_cpu(self.family())
            quiet = quiet + 1 if used - before < IDLE_CORES * SETTLE_POLL_SECONDS else 0

    def stop(self) -> None:
        """End it, and whatever of it does not end by itself."""
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
    """Run a server for the length of a `with` block, beginning with its first answer.

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
    """Run `fusionray serve` with a Ray of its own.

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
    """Give a Ray a temporary folder of its own; the path of a socket in it may have 107 characters."""
    folder = tempfile.mkdtemp(prefix="fr-")
    try:
        yield {"RAY_TMPDIR": folder, "RAY_ADDRESS": ""}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_free_port() -> int:
    """Find a port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port
