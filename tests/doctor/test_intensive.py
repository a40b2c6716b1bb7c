from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
from itertools import combinations

import pytest
import torch

from fusionray.cli import main
from fusionray.doctor.all_reduce import BusBandwidth, compute_bus_gbytes, examine_bus, judge_bus
from fusionray.doctor.intensive import judge_exchanges, judge_machine, judge_products, measure_machine, plan_rounds
from fusionray.doctor.stress import measure_exchange, measure_products
from fusionray.ray_cluster.connection import find_free_port
from tests.faults.three_nodes import LocalNodes, can_make_namespaces
from tests.support.child_python import ROOT


def test_this_machine_multiplies_matrices(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionray.doctor.stress.SECONDS", 0.1)
    assert measure_products(torch.device("cpu")) > 1
    assert main(["doctor", "--intensive", "--json"]) == 0
    printed = capsys.readouterr()
    assert "doctor: matrix products on this machine" in printed.err
    (found,) = (each for each in json.loads(printed.out)["findings"] if each["name"] == "products")
    assert found["severity"] == "ok"
    assert "GFLOP/s" in found["evidence"]
    (found,) = (each for each in json.loads(printed.out)["findings"] if each["name"] == "all-reduce")
    assert "2 processes (CPU): " in found["evidence"]
    assert set(measure_machine()) == {"products CPU"}


def test_a_slow_gpu_and_a_link_of_few_lanes_are_found() -> None:
    measured = {
        **{f"products GPU {number} (NVIDIA H100)": 700_000.0 for number in range(3)},
        "products GPU 3 (NVIDIA H100)": 400_000.0,
        "copies GPU 0 (NVIDIA H100)": 53.0,
        "copies GPU 1 (NVIDIA H100)": 12.0,
        "copies GPU 2 (NVIDIA L4)": 12.0,  # of which no figure is known
    }
    found = [(each.name, each.severity, each.action) for each in judge_machine(measured) if each.severity != "ok"]
    assert found == [("products", "error", "reset device"), ("copies", "warning", "isolate node")]


def test_every_pair_exchanges_once_and_no_node_has_two_at_once() -> None:
    names = list("abcdefg")
    rounds = plan_rounds(names)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(names, 2))
    for pairs in rounds:
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes))
    assert plan_rounds(["alone"]) == []


def test_a_node_that_computes_slowly_is_found_among_nodes_of_its_kind() -> None:
    cpus = {f"cpu{number}": {"products CPU": 100.0 + number} for number in range(3)}
    gpus = {"gpu": {"products GPU 0 (NVIDIA H100)": 700_000.0}}
    assert list(judge_products({**cpus, **gpus})) == []
    (found,) = judge_products({**cpus, **gpus, "slow": {"products CPU": 60.0}})
    assert (found.node, found.name, found.action) == ("slow", "straggler", "isolate node")
    # Of two nobody can tell which is the odd one.
    assert list(judge_products({"cpu0": {"products CPU": 100.0}, "slow": {"products CPU": 60.0}})) == []


@pytest.mark.parametrize(
    ("rates", "bad"),
    [
        ({("a", "b"): 900.0, ("a", "c"): 910.0, ("b", "c"): 905.0}, []),
        ({("a", "b"): 900.0, ("a", "c"): 90.0, ("b", "c"): 80.0}, [("c", "90 MB/s with its best partner, 900 in")]),
        ({("a", "b"): 900.0, ("a", "c"): None, ("b", "c"): None}, [("c", "meets no other node")]),
        ({("a", "b"): 900.0, ("a", "c"): None, ("b", "c"): 890.0}, [("a", "does not meet c")]),
        ({("a", "b"): 5.0}, []),
        ({}, []),
    ],
)
def test_the_node_with_the_bad_link_is_named(
    rates: dict[tuple[str, str], float | None], bad: list[tuple[str, str]]
) -> None:
    found = [each for each in judge_exchanges(rates) if each.severity == "error"]
    assert [each.node for each in found] == [node for node, _ in bad]
    assert all(each.evidence.startswith(evidence) for each, (_, evidence) in zip(found, bad, strict=True))
    assert all(each.remedy for each in found)


def test_two_processes_exchange_and_agree_on_the_rate() -> None:
    port = find_free_port()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        answers = [pool.apply_async(measure_exchange, (rank, "127.0.0.1", port, "127.0.0.1")) for rank in range(2)]
        one, other = (answer.get(60) for answer in answers)
    assert one > 1
    assert one == pytest.approx(other, rel=0.9)


def test_two_processes_of_a_cpu_make_an_all_reduce_with_gloo() -> None:
    (found,) = examine_bus()
    assert (found.name, found.severity) == ("all-reduce", "note")
    told = re.fullmatch(
        r"2 processes \(CPU\): ([\d.]+) GB/s of bus bandwidth; no reference for these devices", found.evidence
    )
    assert told is not None
    assert 0.01 < float(told[1]) < 100


def test_processes_that_never_meet_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusionray.doctor.all_reduce.ANSWER_SECONDS", 0.0)
    (found,) = examine_bus()
    assert (found.severity, found.action) == ("error", "isolate node")


def test_the_bus_bandwidth_does_not_depend_on_the_number_of_ranks() -> None:
    # In a ring each rank sends its share of n to the next one, 2 (n - 1) times.
    for num_ranks in (2, 4, 8):
        sent = sum(1e9 / num_ranks for _ in range(2 * (num_ranks - 1)))
        assert compute_bus_gbytes(num_ranks, 10**9, seconds=sent / 400e9) == pytest.approx(400)


@pytest.mark.parametrize(
    ("ranks", "model", "rate", "severity"),
    [
        (8, "NVIDIA A100-SXM4-80GB", 183.0, "ok"),
        (8, "NVIDIA A100-SXM4-80GB", 182.0, "error"),
        (8, "NVIDIA H100 80GB HBM3", 369.0, "ok"),
        (8, "NVIDIA H100 80GB HBM3", 367.0, "error"),
        (8, "NVIDIA H200", 385.0, "ok"),
        (8, "NVIDIA H200", 383.0, "error"),
        # Without NVSwitch, with fewer GPUs, and of other models no figure is known.
        (8, "NVIDIA H100 PCIe", 30.0, "note"),
        (8, "NVIDIA H200 NVL", 200.0, "note"),
        (8, "NVIDIA A100-PCIE-40GB", 20.0, "note"),
        (4, "NVIDIA H100 80GB HBM3", 300.0, "note"),
        (8, "NVIDIA GH200 480GB", 100.0, "note"),
        (8, "NVIDIA L4", 10.0, "note"),
        (2, "NVIDIA H100 80GB HBM3", 0.0, "error"),
    ],
)
def test_an_all_reduce_among_gpus_is_judged_by_their_model(ranks: int, model: str, rate: float, severity: str) -> None:
    (found,) = judge_bus(BusBandwidth(ranks, model, rate))
    assert found.severity == severity
    assert bool(found.remedy) == (severity == "error")


@pytest.mark.starts_ray
@pytest.mark.slow(seconds=60)
def test_the_slow_cable_among_three_nodes_is_found_and_named() -> None:
    if not can_make_namespaces():
        pytest.skip("network namespaces cannot be made here")
    with LocalNodes(namespaces=True) as nodes:
        assert nodes.network is not None
        shape = ["root", "tbf", "rate", "160mbit", "burst", "64kb", "latency", "400ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", nodes.network.port(2), *shape], check=True)
        done = subprocess.run(
            [sys.executable, "-m", "fusionray.cli", "doctor", "--cluster", "--intensive", "--json"],
            env={**os.environ, "PYTHONPATH": str(ROOT / "platform"), **nodes.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        address = nodes.nodes[2].ip
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert len({each["node"] for each in findings if each["name"] == "products"}) == 3
    assert len({each["node"] for each in findings if each["name"] == "all-reduce"}) == 3
    found = [each for each in findings if each["name"] == "exchange"]
    assert len(found) == 3
    (bad,) = (each for each in found if each["severity"] == "error")
    print(*(f"{each['node']}: {each['evidence']}" for each in found), sep="\n")
    assert bad["node"] == address
    assert "MB/s with its best partner" in bad["evidence"]
