"""The intensive checks on every node of a Ray cluster: products on each, then exchanges of every pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fusionray.doctor.all_reduce import examine_bus
from fusionray.doctor.finding import Finding
from fusionray.doctor.gpu.clocks import examine_clocks
from fusionray.doctor.host import Host
from fusionray.doctor.intensive import judge_exchanges, judge_machine, judge_products, measure_machine, plan_rounds

MEASURE_SECONDS, EXCHANGE_SECONDS = 300.0, 150.0
UNFINISHED = Finding("node", "error", "its measurement does not end", "look at its raylet's log", "isolate node")


class Examiner:
    """The Ray actor of a node. It reserves nothing: a cluster is examined before its work begins."""

    def __init__(self, address: str) -> None:
        self.address = address

    def measure(self) -> dict[str, float]:
        """Measure this machine."""
        return measure_machine()

    def examine_clocks(self) -> list[Finding]:
        """Load the GPUs of this machine, and judge their clocks."""
        return examine_clocks(Host())

    def all_reduce(self) -> list[Finding]:
        """Judge an all-reduce inside this machine."""
        return examine_bus()

    def find_port(self) -> int:
        """Find a free port of this node."""
        from fusionray.ray_cluster.connection import find_free_port

        return find_free_port(self.address)

    def exchange(self, rank: int, address: str, port: int) -> float:
        """Exchange with another examiner; return MB/s."""
        from fusionray.doctor.stress import measure_exchange

        return measure_exchange(rank, address, port, self.address)


def stress_cluster(show: Callable[[str], object] = lambda _: None) -> list[Finding]:
    """Examine every live node of the connected cluster; `show` is told what is done."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    actor = ray.remote(num_cpus=0, max_restarts=0)(Examiner)
    examiners = {
        address: actor.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(address)
        for address, node in nodes.items()
    }
    try:
        show(f"matrix products on {len(nodes)} nodes")
        asked = {address: examiner.measure.remote() for address, examiner in examiners.items()}
        measured: dict[str, Any] = {address: fetch(answer, MEASURE_SECONDS) for address, answer in asked.items()}
        findings = [replace(UNFINISHED, node=address) for address, values in measured.items() if values is None]
        known = {address: values for address, values in measured.items() if values is not None}
        for address, values in known.items():
            findings += [replace(finding, node=address) for finding in judge_machine(values)]
        findings += judge_products(known)
        live = {address: examiners[address] for address in known}
        show("clocks of the GPUs under load")
        findings += gather(live, lambda examiner: examiner.examine_clocks.remote())
        show("all-reduce inside each node")
        findings += gather(live, lambda examiner: examiner.all_reduce.remote())
        findings += judge_exchanges(exchange_all(live, show))
    finally:
        for examiner in examiners.values():
            ray.kill(examiner)
    return findings


def gather(examiners: Mapping[str, Any], ask: Callable[[Any], Any]) -> list[Finding]:
    """Ask all nodes at once, and return what they find; a node that does not answer is a finding."""
    asked = {address: ask(examiner) for address, examiner in examiners.items()}
    findings: list[Finding] = []
    for address, answer in asked.items():
        found = fetch(answer, MEASURE_SECONDS)
        findings += [UNFINISHED] if found is None else found
        findings = [replace(finding, node=finding.node or address) for finding in findings]
    return findings


def exchange_all(examiners: Mapping[str, Any], show: Callable[[str], object]) -> dict[tuple[str, str], float | None]:
    """Let every pair exchange messages; return MB/s, None for a pair that does not meet."""
    rates: dict[tuple[str, str], float | None] = {}
    rounds = plan_rounds(sorted(examiners))
    for number, pairs in enumerate(rounds, start=1):
        show(f"exchanges between nodes, round {number} of {len(rounds)}")
        running = {}
        for one, other in pairs:
            port = fetch(examiners[one].find_port.remote(), EXCHANGE_SECONDS)
            running[one, other] = [
                examiners[node].exchange.remote(rank, one, port) for rank, node in enumerate((one, other))
            ]
        for pair, answers in running.items():
            found = [fetch(answer, EXCHANGE_SECONDS) for answer in answers]
            rates[pair] = None if None in found else min(found)
    return rates


def fetch(answer: Any, seconds: float) -> Any:
    """Return what an examiner answers; None if it fails, or not in time."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        return ray.get(answer, timeout=seconds)
    except (GetTimeoutError, RayError, RuntimeError):
        return None
