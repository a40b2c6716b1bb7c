"""Replicas that share the load, come with it and go with it: measured with a stub that leaves the CPU free.

The stub makes one picture at a time in 20 ms, as a GPU would, so that four replicas fit on few cores.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fusionray.benchmarks.findings import Findings
from fusionray.benchmarks.interleaving import divide
from fusionray.benchmarks.serve.clients import ServerAnswer
from fusionray.benchmarks.serve.context import ServeBenchContext
from fusionray.benchmarks.serve.load import OK, percentile_ms
from fusionray.benchmarks.serve.proxy import start_stub
from fusionray.benchmarks.serve.servers import Server
from fusionray.benchmarks.serve.soak import find_replicas
from fusionray.errors import ServiceFailed
from fusionray.reporting.charts import ChartLine, draw_lines
from fusionray.reporting.parts import Chart

REPLICAS = 4
STUB_OPTIONS = ("--milliseconds", "20", "--in-turn", "ingress.cpus=0.25")
# Clients that keep four replicas busy; a burst keeps more requests inside than the service aims at with three.
CLIENTS, BURST_CLIENTS = 16, 32
LOAD_SECONDS, QUIET_SECONDS, BURST_SECONDS, DOWNSCALE_SECONDS = 8.0, 5.0, 20.0, 5.0
LONGEST_WAIT_SECONDS = 60.0
SAMPLE_SECONDS = 0.5


@dataclass
class Clients:
    """Clients that ask a server one request after the other, and what they were answered."""

    server: Server
    answers: list[ServerAnswer] = field(default_factory=list)

    @contextmanager
    def asking(self, number: int) -> Iterator[None]:
        """Let a number of further clients ask for the length of a `with` block."""
        stopping = threading.Event()
        threads = [threading.Thread(target=self.work, args=(stopping,), name="client") for _ in range(number)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopping.set()
            for thread in threads:
                thread.join()

    def work(self, stopping: threading.Event) -> None:
        """Ask until told to stop."""
        client = self.server.client()
        while not stopping.is_set():
            self.answers.append(client.ask())
        client.close()


def replica_of(answer: ServerAnswer) -> str:
    """Return the process of the stub that answered."""
    return answer.headers.get("x-fusionray-bundle", "")


def measure_scaling(context: ServeBenchContext, tick: Callable[[], None]) -> Findings:
    """Compare four replicas with one, then let one service scale from one replica to four and back."""
    found = Findings()
    fixed = {number: (*STUB_OPTIONS, f"ingress.num_replicas={number}") for number in (1, REPLICAS)}
    with start_stub("replicas-1", context, fixed[1]) as one, start_stub("replicas-4", context, fixed[REPLICAS]) as four:
        compare_replicas(found, one, four, context.config.rounds, tick)
    limits = (f"ingress.max_replicas={REPLICAS}", f"ingress.downscale_delay_seconds={DOWNSCALE_SECONDS}")
    with start_stub("autoscaling", context, (*STUB_OPTIONS, *limits)) as server:
        follow_load(found, server)
    tick()
    return found


def compare_replicas(found: Findings, one: Server, four: Server, rounds: int, tick: Callable[[], None]) -> None:
    """Load one replica and four in turn: their rates, and how evenly the four are used."""
    rates: dict[str, list[float]] = {one.name: [], four.name: []}
    balance = []
    for number in range(rounds):
        for server in (one, four) if number % 2 == 0 else (four, one):
            clients = Clients(server)
            with clients.asking(CLIENTS):
                time.sleep(LOAD_SECONDS)
            answered = Counter(replica_of(answer) for answer in clients.answers if answer.status == OK)
            rates[server.name].append(answered.total() / LOAD_SECONDS)
            if server is four:
                # A replica without any answer is missing from the counts.
                balance.append(
                    (min(answered.values()) if len(answered) == REPLICAS else 0) * REPLICAS / answered.total()
                )
        tick()
    found.values |= {"replica_balance": balance, "replicas_4_throughput": divide(rates[four.name], rates[one.name])}
    found.notes.append(
        f"stub of 20 ms, {CLIENTS} clients: one replica {statistics.median(rates[one.name]):.1f} pictures/s, "
        f"four {statistics.median(rates[four.name]):.1f}"
    )


def follow_load(found: Findings, server: Server) -> None:
    """Send a burst to a service with one replica, and wait until the replicas that came have gone.

    Raises: ServiceFailed if they do not come, or do not go.
    """
    clients = Clients(server)
    began = time.time()
    replicas: list[tuple[float, int]] = []

    def sample(seconds: float, done: Callable[[], bool] = lambda: False) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not done():
            replicas.append((time.time() - began, len(find_replicas(server))))
            time.sleep(SAMPLE_SECONDS)
        return done()

    with clients.asking(1):
        sample(QUIET_SECONDS)
        burst_at = time.time()
        with clients.asking(BURST_CLIENTS - 1):
            sample(BURST_SECONDS)
            if not sample(LONGEST_WAIT_SECONDS, lambda: len(first_answers(clients.answers)) >= REPLICAS):
                raise ServiceFailed(f"{REPLICAS} replicas did not come; see {server.log}")
        if not sample(LONGEST_WAIT_SECONDS, lambda: replicas[-1][1] == 1):
            raise ServiceFailed(f"the replicas did not go; see {server.log}")
        sample(QUIET_SECONDS)
    came = [seconds - burst_at for seconds in first_answers(clients.answers)[1:]]
    failed = sum(answer.status != OK for answer in clients.answers)
    found.values |= {"scale_up_seconds": [came[0]], "scale_failed_requests": [float(failed)]}
    found.notes.append(
        f"a burst of {BURST_CLIENTS} clients on one replica: the others gave their first answers after "
        f"{', '.join(f'{seconds:.1f}' for seconds in came)} s; {len(clients.answers)} requests, {failed} failed"
    )
    found.charts += draw_scaling(clients.answers, replicas, began)


def first_answers(answers: Sequence[ServerAnswer]) -> list[float]:
    """Return when each replica gave its first picture, s since 1970, the first one first."""
    times: dict[str, float] = {}
    for answer in list(answers):
        if answer.status == OK:
            ended = answer.began + answer.seconds
            times[replica_of(answer)] = min(times.get(replica_of(answer), math.inf), ended)
    return sorted(times.values())


def draw_scaling(answers: Sequence[ServerAnswer], replicas: Sequence[tuple[float, int]], began: float) -> list[Chart]:
    """Draw replicas, pictures/s and latency over the seconds since `began`."""
    by_second: dict[int, list[float]] = {}
    for answer in answers:
        by_second.setdefault(int(answer.began + answer.seconds - began), []).append(answer.seconds)
    seconds = sorted(by_second)[:-1]
    rate = [(second + 0.5, len(by_second[second])) for second in seconds]
    p50, p99 = ([(second + 0.5, percentile_ms(by_second[second], each)) for second in seconds] for each in (50, 99))
    drawings = [
        ("scaling-replicas", "Replicas", [ChartLine(replicas)]),
        ("scaling-rate", "Pictures/s", [ChartLine(rate)]),
        ("scaling-latency", "Latency, ms", [ChartLine(p50, "p50"), ChartLine(p99, "p99", kind="second")]),
    ]
    return [
        Chart(name, title, draw_lines(lines, title=f"{title} over time", x_label="seconds"))
        for name, title, lines in drawings
    ]
