"""Many clients at once; a client that is refused, or loses its connection, repeats its request once."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fusionray.benchmarks.serve.clients import LOST, UNAVAILABLE, Checker, ServerAnswer
from fusionray.benchmarks.serve.load import OK
from fusionray.benchmarks.serve.servers import Server


@dataclass(frozen=True)
class ClientRequest:
    """One request with its retry: the last status and seconds, the seconds of a first refusal, whether it is right, and
    whether the connection of the first attempt was lost.
    """

    status: int
    seconds: float
    refused_seconds: float | None
    right: bool
    lost: bool = False


@dataclass(frozen=True)
class ClientResults:
    """The requests of a pool of clients in `seconds`."""

    requests: tuple[ClientRequest, ...]
    seconds: float

    @property
    def answered(self) -> list[float]:
        """List the seconds of the requests that were answered with a picture."""
        return [request.seconds for request in self.requests if request.status == OK]

    @property
    def refused(self) -> list[float]:
        """List the seconds of the refusals."""
        final = [request.seconds for request in self.requests if request.status == UNAVAILABLE]
        first = [request.refused_seconds for request in self.requests if request.refused_seconds is not None]
        return first + final

    @property
    def failures(self) -> Counter[int]:
        """Count the requests that failed for good by their last status; below 0: `clients.LOST` and `FAILED`."""
        return Counter(request.status for request in self.requests if request.status != OK)

    @property
    def failed(self) -> int:
        """Count requests that failed for good."""
        return self.failures.total()

    @property
    def lost(self) -> int:
        """Count the requests that were repeated because their connection was lost."""
        return sum(request.lost for request in self.requests)

    @property
    def wrong(self) -> int:
        """Count answers that were not the right picture."""
        return sum(request.status == OK and not request.right for request in self.requests)


def run_clients(server: Server, checker: Checker, clients: int, seconds: float) -> ClientResults:
    """Run a pool of clients; each sends its next request as soon as it has an answer."""
    until = time.monotonic() + seconds

    def run_client(_: int) -> list[ClientRequest]:
        client, found = server.client(), []
        while time.monotonic() < until:
            found.append(to_request(client.ask_with_retry(), checker))
        client.close()
        return found

    with ThreadPoolExecutor(clients, "clients") as threads:
        requests = [request for found in threads.map(run_client, range(clients)) for request in found]
    return ClientResults(tuple(requests), seconds)


def abandon_requests(server: Server, clients: int, seconds: float) -> None:
    """Send a request from each client, and close all connections at once before they are answered."""
    pool = [server.client() for _ in range(clients)]
    for client in pool:
        # While a replica is killed, a connection may be lost.
        with contextlib.suppress(OSError):
            client.send()
    time.sleep(seconds)
    for client in pool:
        client.close()


def to_request(answers: list[ServerAnswer], checker: Checker) -> ClientRequest:
    """Summarise the one or two answers to a request."""
    first, last = answers[0], answers[-1]
    refused = first.seconds if len(answers) > 1 and first.status == UNAVAILABLE else None
    return ClientRequest(last.status, last.seconds, refused, checker.is_right(last), first.status == LOST)
