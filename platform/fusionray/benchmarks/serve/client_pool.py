"""Many clients that behave as they are told: refused, they come again when the service says so."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fusionray.benchmarks.serve.clients import UNAVAILABLE, Answer, Checker
from fusionray.benchmarks.serve.load import OK
from fusionray.benchmarks.serve.servers import Server


@dataclass(frozen=True)
class ClientRequest:
    """One wish of a client: how its answer came out, how long a refusal before it took, and whether it is right."""

    status: int
    seconds: float
    refused_seconds: float | None
    right: bool


@dataclass(frozen=True)
class ClientPool:
    """What a crowd of clients saw in `seconds`."""

    asks: tuple[ClientRequest, ...]
    seconds: float

    @property
    def answered(self) -> list[float]:
        """List the seconds of the requests that were answered with a picture."""
        return [ask.seconds for ask in self.asks if ask.status == OK]

    @property
    def refused(self) -> list[float]:
        """List the seconds that refusals took."""
        late = [ask.seconds for ask in self.asks if ask.status == UNAVAILABLE]
        return [ask.refused_seconds for ask in self.asks if ask.refused_seconds is not None] + late

    @property
    def failed(self) -> int:
        """Count wishes that came to nothing."""
        return sum(ask.status != OK for ask in self.asks)

    @property
    def wrong(self) -> int:
        """Count answers that were not the right picture."""
        return sum(ask.status == OK and not ask.right for ask in self.asks)


def gather(server: Server, checker: Checker, clients: int, seconds: float) -> ClientPool:
    """Let so many clients ask for so long; each asks again as soon as it has its answer."""
    until = time.monotonic() + seconds

    def ask_on(_: int) -> list[ClientRequest]:
        client, found = server.client(), []
        while time.monotonic() < until:
            found.append(judge(client.ask_patiently(), checker))
        client.close()
        return found

    with ThreadPoolExecutor(clients, "clients") as threads:
        asks = [ask for found in threads.map(ask_on, range(clients)) for ask in found]
    return ClientPool(tuple(asks), seconds)


def judge(answers: list[Answer], checker: Checker) -> ClientRequest:
    """Say how a wish came out."""
    last = answers[-1]
    refused = answers[0].seconds if len(answers) > 1 else None
    return ClientRequest(last.status, last.seconds, refused, checker.is_right(last))
