"""A driver process with its own Ray cluster, whose processes tests can find and kill one by one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from fusionray.hardware.processes import find_processes, list_processes
from tests.support.tiny_run import count_images

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 120.0
# Ray's agents first report to the head that their node died; if the driver was killed, the head is dead too, and they
# wait a minute for it.
LINGER_SECONDS = 150.0
WORKER, CONTROLLER = "RayTrainWorker", "TrainController"


def wait_until(what: str, ask: Callable[[], bool], seconds: float = WAIT_SECONDS) -> float:
    """Wait until a condition holds; return the seconds that it took."""
    started = time.monotonic()
    while not ask():
        assert time.monotonic() < started + seconds, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)
    return time.monotonic() - started


@contextlib.contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Run a function in a thread during the block; raise its error at the end."""
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(act)
        yield
        done.result()


@dataclass
class Driver:
    """`fusionray VERB --config SETTINGS`, which can be started repeatedly; `ray_folder` marks all of its processes."""

    settings: Path
    ray_folder: str
    overrides: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    verb: str = "train"
    process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> Path:
        return self.settings.parent

    @property
    def log(self) -> str:
        return (self.output / "driver.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the command, in the background."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment = {**inherited, "PYTHONPATH": str(ROOT / "platform"), "RAY_TMPDIR": self.ray_folder}
        command = [sys.executable, "-m", "fusionray.cli", self.verb, "--config", str(self.settings), *self.overrides]
        with (self.output / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment | self.environment, stdout=log, stderr=log)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        """Wait until the command ends; return its exit status."""
        assert self.process is not None
        return self.process.wait(timeout=seconds)

    def has_ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def find(self, title: str) -> list[int]:
        """Find the Ray processes of this driver that have a title."""
        return find_processes(f"ray::{title}", variable=f"RAY_TMPDIR={self.ray_folder}")

    def wait_for_images(self, images: int) -> None:
        """Wait until a checkpoint has seen this many images."""

        def reached() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            return count_images(self.output) >= images

        wait_until(f"a checkpoint of {images} images", reached)

    def kill(self, pid: int) -> None:
        """Kill one process that `find` returns."""
        os.kill(pid, signal.SIGKILL)
        wait_until(f"the end of process {pid}", lambda: pid not in list_processes(), 10)

    def close(self) -> None:
        """End all processes, and check that none is left."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        wait_until("the end of every process", lambda: not self.list_processes(), LINGER_SECONDS)

    def list_processes(self) -> list[int]:
        """List all processes of this driver."""
        return find_processes(variable=f"RAY_TMPDIR={self.ray_folder}")


def read_log_lines(driver: Driver, needle: str) -> list[str]:
    """Find lines in the driver's log, in which progress bars overwrite lines."""
    with contextlib.suppress(FileNotFoundError):
        return [line for line in driver.log.replace("\r", "\n").splitlines() if needle in line]
    return []
