"""The intensive checks: each takes seconds of work on all cores or GPUs, and on a cluster a minute of the network."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

from fusionray.doctor.all_reduce import examine_bus
from fusionray.doctor.finding import Finding
from fusionray.doctor.gpu.clocks import examine_clocks
from fusionray.doctor.host import Host

# What is measured, by the names of the findings.
MEASUREMENTS = {
    "products": "Matrix products on all cores and each GPU: how many operations a second.",
    "copies": "Copies from page-locked memory to each GPU: GB/s, against what its model reaches.",
    "GPU clocks": "Clocks, heat and power of all GPUs while they multiply matrices: what slows them down.",
    "all-reduce": "An all-reduce among all GPUs of a machine, or two processes of a CPU: bus bandwidth.",
    "straggler": "On a cluster: nodes whose products are slower than those of the others.",
    "exchange": "On a cluster: what every pair of nodes exchanges in a second, which names a slow node or link.",
}
# Share of the median of all nodes below which one is a straggler: in a synchronous training all others wait for it.
LEAST_PRODUCTS, LEAST_EXCHANGE = 0.8, 0.5
# GB/s from page-locked memory that a healthy link of each GPU reaches, as cloud providers' health checks have it.
WANTED_COPIES = {"A100": 23.0, "H100": 52.0, "H200": 55.0}
LEAST_COPIES = 0.8
# Nodes of which no median can tell which is the odd one.
FEW = 3


def stress_machine(host: Host, show: Callable[[str], object] = lambda _: None) -> list[Finding]:
    """Measure and judge this machine; `show` is told what is done."""
    show("matrix products on this machine")
    findings = list(judge_machine(measure_machine()))
    if host.num_gpus:
        show("clocks of the GPUs under load")
        findings += examine_clocks(host)
    show("all-reduce inside this machine")
    return findings + examine_bus()


def measure_machine() -> dict[str, float]:
    """Measure each GPU, or the CPU: `products NAME` in GFLOP/s, `copies NAME` in GB/s."""
    import torch

    from fusionray.doctor.stress import measure_copies, measure_products

    if not torch.cuda.is_available():
        return {"products CPU": measure_products(torch.device("cpu"))}
    found = {}
    for number in range(torch.cuda.device_count()):
        device = torch.device("cuda", number)
        name = f"GPU {number} ({torch.cuda.get_device_name(device)})"
        found[f"products {name}"] = measure_products(device)
        found[f"copies {name}"] = measure_copies(device)
    return found


def judge_machine(measured: Mapping[str, float]) -> Iterator[Finding]:
    """Judge what was measured on one machine: copies by what its GPU should reach, products beside each other."""
    products = {name: value for name, value in measured.items() if name.startswith("products")}
    usual = statistics.median(products.values())
    for name, value in products.items():
        evidence = f"{name.removeprefix('products ')}: {value:,.0f} GFLOP/s of matrix products"
        if value < LEAST_PRODUCTS * usual:
            evidence += f", {usual:,.0f} in the middle of this machine's"
            yield Finding("products", "error", evidence, "look at its clocks, heat and power limit", "reset device")
        else:
            yield Finding("products", "ok", evidence)
    for name, value in measured.items():
        if not name.startswith("copies"):
            continue
        evidence = f"{name.removeprefix('copies ')}: {value:.0f} GB/s from page-locked memory"
        wanted = next((rate for model, rate in WANTED_COPIES.items() if model in name), 0.0)
        if value < LEAST_COPIES * wanted:
            remedy = "the link is limited: look at its lanes (`nvidia-smi -q -d PCIE`), and at the slot"
            yield Finding("copies", "warning", f"{evidence}, {wanted:.0f} expected", remedy, "isolate node")
        else:
            yield Finding("copies", "ok", evidence)


def plan_rounds(names: list[str]) -> list[list[tuple[str, str]]]:
    """Plan exchanges of all pairs in rounds, in each of which no node has two: what is slow is then its own link."""
    left = list(combinations(names, 2))
    rounds = []
    while left:
        busy: set[str] = set()
        now = []
        for pair in left:
            if busy.isdisjoint(pair):
                busy.update(pair)
                now.append(pair)
        left = [pair for pair in left if pair not in now]
        rounds.append(now)
    return rounds


def judge_products(measured: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    """Compare the products of nodes that have equal devices."""
    by_device: dict[str, dict[str, float]] = {}
    for node, values in measured.items():
        for name, value in values.items():
            if name.startswith("products"):
                model = name.partition("(")[2] or name
                slowest = by_device.setdefault(model, {})
                slowest[node] = min(value, slowest.get(node, value))
    for values in by_device.values():
        usual = statistics.median(values.values())
        for node, value in values.items():
            if len(values) >= FEW and value < LEAST_PRODUCTS * usual:
                evidence = f"{value:,.0f} GFLOP/s of matrix products, {usual:,.0f} in the middle of all nodes"
                remedy = "every step waits for it: look at its clocks, heat, and what else runs there"
                yield Finding("straggler", "error", evidence, remedy, "isolate node", node)


def judge_exchanges(rates: Mapping[tuple[str, str], float | None]) -> Iterator[Finding]:
    """Find nodes that are slow with every partner, from the MB/s of each pair; None: they did not meet."""
    nodes = sorted({node for pair in rates for node in pair})
    best = {node: max((rate or 0.0 for pair, rate in rates.items() if node in pair), default=0.0) for node in nodes}
    usual = statistics.median(best.values()) if best else 0.0
    for node, rate in best.items():
        if not rate:
            remedy = "open the ports between nodes; set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to its interface"
            yield Finding("exchange", "error", "meets no other node", remedy, "isolate node", node)
        elif len(nodes) >= FEW and rate < LEAST_EXCHANGE * usual:
            evidence = f"{rate:,.0f} MB/s with its best partner, {usual:,.0f} in the middle of all nodes"
            remedy = "look at its link: cable, port of the switch, `ethtool`, what else uses it"
            yield Finding("exchange", "error", evidence, remedy, "isolate node", node)
        else:
            yield Finding("exchange", "ok", f"{rate:,.0f} MB/s with its best partner", node=node)
    for (one, other), met in rates.items():
        if met is None and best[one] and best[other]:
            evidence = f"does not meet {other}"
            yield Finding("exchange", "error", evidence, "look at the route between the two", "isolate node", one)
