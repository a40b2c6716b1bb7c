"""Load from a cheap generator: h2load, with its log of every request."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fusionray.benchmarks.serve.inputs import Body
from fusionray.errors import InputMissing, ServiceFailed

GENERATOR = "h2load"
OK = 200
# Extra time for the connections to open and the last answers to arrive.
GRACE_SECONDS = 30.0
# Share of the clients that a server serves at least if it starves none: requests are cut off at the ends of a load.
LEAST_SERVED = 0.7


@dataclass(frozen=True)
class Load:
    """A load: this many clients at once; each sends its next request as soon as it has an answer."""

    clients: int
    seconds: float
    warm_up_seconds: float = 0.0


@dataclass(frozen=True)
class Request:
    """One request: its start (seconds since 1970), its status, and the seconds to its answer."""

    began: float
    status: int
    seconds: float


@dataclass(frozen=True)
class LoadResult:
    """The requests of a load of `seconds` by so many clients. Latencies are of answers with status 200, in ms."""

    requests: tuple[Request, ...]
    seconds: float
    clients: int

    @property
    def answers(self) -> list[float]:
        """List the seconds of the requests that were answered."""
        return [request.seconds for request in self.requests if request.status == OK]

    @property
    def rate(self) -> float:
        """Return answers a second."""
        return len(self.answers) / self.seconds

    @property
    def failed(self) -> int:
        """Count the requests that were not answered with 200."""
        return len(self.requests) - len(self.answers)

    @property
    def starves_clients(self) -> bool:
        """Tell whether many clients were never answered, which the log of the requests that ended does not show.

        By Little's law, rate times mean latency is the number of clients that were served.
        """
        return sum(self.answers) < LEAST_SERVED * self.clients * self.seconds

    def latency_ms(self, percentile: float) -> float:
        """Return a percentile of the latency.

        Raises: ServiceFailed if nothing was answered.
        """
        return percentile_ms(self.answers, percentile)


def percentile_ms(seconds: Sequence[float], percentile: float) -> float:
    """Return a percentile in ms.

    Raises: ServiceFailed if the sequence is empty.
    """
    if not seconds:
        raise ServiceFailed("no request was answered with 200; see the logs of the servers in the output folder")
    return float(np.percentile(seconds, percentile)) * 1000.0


def find_generator() -> str:
    """Find the load generator.

    Raises: InputMissing.
    """
    found = shutil.which(GENERATOR)
    if found is None:
        raise InputMissing(f"{GENERATOR} is not on PATH; install it (Debian and Ubuntu: apt install nghttp2-client)")
    return found


def apply_load(url: str, body: Body, load: Load) -> LoadResult:
    """Send the same request repeatedly from many clients.

    Raises: InputMissing, ServiceFailed if the server cannot be reached.
    """
    with TemporaryDirectory(prefix="fusionray-load-") as folder:
        data, record = Path(folder, "body"), Path(folder, "record")
        data.write_bytes(body.data)
        command = [
            find_generator(),
            "--h1",
            f"--clients={load.clients}",
            f"--duration={round(load.seconds * 1000)}ms",
            f"--warm-up-time={round(load.warm_up_seconds * 1000)}ms",
            f"--data={data}",
            f"--header=content-type: {body.media_type}",
            f"--log-file={record}",
            url,
        ]
        limit = load.seconds + load.warm_up_seconds + GRACE_SECONDS
        try:
            done = subprocess.run(  # noqa: S603 - its own settings, no shell
                command, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise ServiceFailed(f"{url}: the load did not end within {limit:g} s") from None
        if done.returncode or not record.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise ServiceFailed(f"{url}: {GENERATOR} failed: {lines[-1]}")
        with record.open() as log:
            return LoadResult(tuple(parse_record(log)), load.seconds, load.clients)


def parse_record(lines: Iterable[str]) -> list[Request]:
    """Parse h2load's log: microseconds since 1970, status (-1: lost), microseconds, separated by tabs."""
    found = []
    for line in lines:
        began, status, microseconds = line.split("\t")[:3]
        found.append(Request(int(began) / 1e6, int(status), int(microseconds) / 1e6))
    return found
