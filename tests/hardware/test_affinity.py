from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from fusionray.hardware.affinity import apply_overrides, gpu_address, plan_cpu, plan_gpu
from fusionray.hardware.topology import Topology, format_cpus, parse_cpus, read_topology

CHILD = Path(__file__).with_name("bound_child.py")


@dataclass
class Machine:
    """A machine described by files as Linux shows them."""

    nodes: Sequence[str]
    siblings: Sequence[str] = ()
    gpus: Mapping[str, int] = field(default_factory=dict)
    others: Sequence[str] = ()
    cgroup: str = "0::/\n"
    limits: Mapping[str, str] = field(default_factory=dict)

    def read(self, root: Path, allowed: str | None = None) -> Topology:
        for node, cpus in enumerate(self.nodes):
            write(root / f"sys/devices/system/node/node{node}/cpulist", cpus)
        for pair in self.siblings:
            for cpu in parse_cpus(pair):
                write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", pair)
        for address, node in self.gpus.items():
            cpus = ",".join(self.nodes) if node < 0 else self.nodes[node]
            write_device(root, address, vendor="0x10de", kind="0x030200", node=node, cpus=cpus)
        for address in self.others:
            write_device(root, address, vendor="0x1a03", kind="0x030000", node=0, cpus=self.nodes[0])
        write(root / "proc/self/cgroup", self.cgroup)
        for path, text in self.limits.items():
            write(root / "sys/fs/cgroup" / path, text)
        return read_topology(root, parse_cpus(allowed or ",".join(self.nodes)))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def write_device(root: Path, address: str, *, vendor: str, kind: str, node: int, cpus: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    for name, text in {"vendor": vendor, "class": kind, "numa_node": str(node), "local_cpulist": cpus}.items():
        write(folder / name, text)


EIGHT_GPUS = {f"0000:{bus:02x}:00.0": bus // 0x80 for bus in (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)}
# Two sockets of 16 cores with two threads each, numbered as Linux does on such servers: siblings are 32 apart.
SERVER = Machine(
    nodes=["0-15,32-47", "16-31,48-63"],
    siblings=[f"{core},{core + 32}" for core in range(32)],
    gpus=EIGHT_GPUS,
    others=["0000:03:00.0"],
)


def test_eight_workers_share_the_cores_next_to_their_gpus(tmp_path: Path) -> None:
    topology = SERVER.read(tmp_path)
    addresses = list(EIGHT_GPUS)
    plans = [plan_gpu(topology, rank, 8, address, addresses) for rank, address in enumerate(addresses)]
    assert [plan.node for plan in plans] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [format_cpus(plan.cores) for plan in plans[:5]] == [
        "0-3,32-35",
        "4-7,36-39",
        "8-11,40-43",
        "12-15,44-47",
        "16-19,48-51",
    ]
    # One thread a core: two on one core would compete for its only matrix unit.
    assert {plan.threads for plan in plans} == {4}
    assert sorted(cpu for plan in plans for cpu in plan.cores) == list(range(64))
    assert "next to GPU 0000:90:00.0" in plans[5].reason


def test_workers_on_some_of_the_gpus_take_the_cores_of_the_idle_ones_too(tmp_path: Path) -> None:
    topology = SERVER.read(tmp_path)
    peers = ["0000:87:00.0", "0000:07:00.0", "0000:bd:00.0"]
    plans = [plan_gpu(topology, rank, 3, address, peers) for rank, address in enumerate(peers)]
    assert [format_cpus(plan.cores) for plan in plans] == ["16-23,48-55", "0-15,32-47", "24-31,56-63"]


def test_workers_that_do_not_know_of_each_other_never_take_the_same_cores(tmp_path: Path) -> None:
    topology = SERVER.read(tmp_path)
    first = plan_gpu(topology, 0, 2, "0000:4e:00.0", None)
    second = plan_gpu(topology, 1, 2, "0000:47:00.0", None)
    assert not set(first.cores) & set(second.cores)
    alone = plan_gpu(topology, 0, 1, "0000:4e:00.0", None)
    assert format_cpus(alone.cores) == "0-15,32-47"


@pytest.mark.parametrize(("address", "says"), [("0000:aa:00.0", "GPU 0000:aa:00.0"), (None, "GPU unknown")])
def test_a_gpu_that_sysfs_does_not_show_gets_a_share_of_all_cores(
    tmp_path: Path, address: str | None, says: str
) -> None:
    plan = plan_gpu(SERVER.read(tmp_path), 1, 2, address, None)
    assert format_cpus(plan.cores) == "16-31,48-63"
    assert says in plan.reason


def test_a_container_away_from_its_gpu_still_gets_its_cores(tmp_path: Path) -> None:
    topology = SERVER.read(tmp_path, allowed="16-23")
    plan = plan_gpu(topology, 0, 1, "0000:07:00.0", ["0000:07:00.0"])
    assert plan.cores == tuple(range(16, 24))
    assert plan.threads == 8
    assert "no allowed core next to GPU 0000:07:00.0" in plan.reason


@pytest.mark.parametrize("known", [True, False])
def test_workers_close_to_their_gpus_leave_cores_to_those_that_are_not(tmp_path: Path, known: bool) -> None:
    topology = SERVER.read(tmp_path, allowed="0-15")
    addresses = ["0000:07:00.0", "0000:87:00.0"]
    peers = addresses if known else None
    plans = [plan_gpu(topology, rank, 2, addresses[rank], peers) for rank in range(2)]
    assert [format_cpus(plan.cores) for plan in plans] == ["0-7", "8-15"]


def test_a_virtual_machine_without_numa_divides_all_cores_among_its_gpus(tmp_path: Path) -> None:
    topology = Machine(nodes=["0-7"], gpus={"0000:00:05.0": -1, "0000:00:06.0": -1}).read(tmp_path)
    peers = list(topology.gpus)
    plans = [plan_gpu(topology, rank, 2, peers[rank], peers) for rank in range(2)]
    assert [plan.cores for plan in plans] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_three_cpu_workers_divide_eight_cores(tmp_path: Path) -> None:
    topology = Machine(nodes=["0-7"]).read(tmp_path)
    plans = [plan_cpu(topology, rank, 3) for rank in range(3)]
    assert [plan.cores for plan in plans] == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert [plan.threads for plan in plans] == [2, 3, 3]


def test_as_many_cpu_workers_as_nodes_get_a_node_each(tmp_path: Path) -> None:
    topology = SERVER.read(tmp_path)
    assert [plan_cpu(topology, rank, 2).node for rank in range(2)] == [0, 1]
    assert plan_cpu(topology, 0, 1).node is None
    assert plan_cpu(topology, 0, 1).threads == 32


def test_more_workers_than_cores_split_siblings_before_they_share(tmp_path: Path) -> None:
    topology = Machine(nodes=["0-3"], siblings=["0,2", "1,3"]).read(tmp_path)
    assert [plan_cpu(topology, rank, 2).cores for rank in range(2)] == [(0, 2), (1, 3)]
    assert [plan_cpu(topology, rank, 4).cores for rank in range(4)] == [(0,), (2,), (1,), (3,)]
    assert [plan_cpu(topology, rank, 5).cores for rank in range(5)] == [(0,), (2,), (1,), (3,), (0,)]
    assert {plan_cpu(topology, rank, 5).threads for rank in range(5)} == {1}


def test_a_container_of_two_named_cores_uses_these(tmp_path: Path) -> None:
    topology = Machine(nodes=["0-31", "32-63"]).read(tmp_path, allowed="40-41")
    plans = [plan_cpu(topology, rank, 2) for rank in range(2)]
    assert [(plan.cores, plan.threads, plan.node) for plan in plans] == [((40,), 1, 1), ((41,), 1, 1)]


@pytest.mark.parametrize(
    ("cgroup", "limits"),
    [
        ("0::/", {"cpu.max": "200000 100000"}),
        # The nearest group says nothing: the one above it limits both.
        ("0::/pod/box", {"pod/box/cpu.max": "max 100000", "pod/cpu.max": "200000 100000"}),
        ("0::/only/on/the/host", {"cpu.max": "200000 100000"}),
        (
            "4:cpu,cpuacct:/box\n0::/",
            {"cpu,cpuacct/box/cpu.cfs_quota_us": "200000", "cpu,cpuacct/box/cpu.cfs_period_us": "100000"},
        ),
    ],
)
def test_a_container_of_two_cpus_by_time_starts_two_threads_on_no_core_of_its_own(
    tmp_path: Path, cgroup: str, limits: dict[str, str]
) -> None:
    topology = Machine(nodes=["0-63"], cgroup=cgroup, limits=limits).read(tmp_path)
    assert topology.quota == 2
    alone, shared = plan_cpu(topology, 0, 1), plan_cpu(topology, 1, 2)
    assert (alone.threads, shared.threads) == (2, 1)
    assert alone.cores == shared.cores == tuple(range(64))
    assert "2 CPUs" in alone.reason


@pytest.mark.parametrize("limits", [{"cpu.max": "max 100000"}, {}, {"cpu.max": "6400000 100000"}])
def test_a_limit_that_does_not_bind_changes_nothing(tmp_path: Path, limits: dict[str, str]) -> None:
    topology = Machine(nodes=["0-63"], limits=limits).read(tmp_path)
    assert plan_cpu(topology, 1, 2).cores == tuple(range(32, 64))


def test_a_system_without_topology_files_still_gives_a_plan(tmp_path: Path) -> None:
    topology = read_topology(tmp_path, [3, 5])
    plan = plan_cpu(topology, 1, 2)
    assert (plan.cores, plan.threads, plan.node) == ((5,), 1, None)


def test_settings_of_the_user_override_the_plan(tmp_path: Path) -> None:
    topology = Machine(nodes=["0-7"]).read(tmp_path)
    plan = plan_cpu(topology, 0, 2)
    assert apply_overrides(plan, topology, threads=7, bind=True).threads == 7
    free = apply_overrides(plan, topology, threads=None, bind=False)
    assert free.cores == tuple(range(8))
    assert free.threads == 4
    assert free.reason == "not bound, as configured"


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-2,8,10-11"])
def test_lists_of_cpus_are_read_and_written_as_linux_does(text: str) -> None:
    assert format_cpus(parse_cpus(text)) == text


def test_a_cpu_has_no_pci_address() -> None:
    assert gpu_address(torch.device("cpu")) is None


def test_a_worker_binds_threads_that_already_run() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    answer = subprocess.run(
        [sys.executable, str(CHILD)], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    seen = json.loads(answer.stdout)
    want = seen["placement"]["cores"]
    assert set(want) <= set(allowed)
    assert seen["main"] == seen["older_thread"] == seen["newer_thread"] == want
    assert seen["threads"] == seen["placement"]["threads"]
    if len(allowed) > 1:
        assert len(want) < len(allowed)
    assert seen["asked"] == {"threads": 3, "cores": want}
