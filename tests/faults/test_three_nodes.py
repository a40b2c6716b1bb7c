"""Nodes with their own raylets: they start, are lost, are detected as lost, come back, and leave nothing behind.

One head serves the tests but the last two, in their order. How long it took to notice a loss is printed (`pytest -s`).
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusionray.hardware.processes import list_processes
from tests.faults.namespaces import run_ip
from tests.faults.sessions import list_session
from tests.faults.three_nodes import LocalNodes, can_make_namespaces
from tests.support.child_python import ROOT, run_python

# Every test's share of the starts of Ray.
pytestmark = [pytest.mark.starts_ray, pytest.mark.slow(seconds=15)]
NOTICE_SECONDS = 20.0

LOOK = """
import json, ray
ray.init(log_to_driver=False)
print(json.dumps({node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}))
"""

# A detached actor on the named node, with a child process that leads its own session.
HOLD = """
import json, os, subprocess, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(log_to_driver=False, namespace="test")

@ray.remote(lifetime="detached", name="holder", num_cpus=1)
class Holder:
    def hold(self):
        self.child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return {"actor": os.getpid(), "child": self.child.pid, "told": os.environ["FUSIONRAY_TOLD"]}

holder = Holder.options(scheduling_strategy=NodeAffinitySchedulingStrategy(sys.argv[1], soft=False)).remote()
print(json.dumps(ray.get(holder.hold.remote())))
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(environment={"FUSIONRAY_TOLD": "every worker"}) as running:
        yield running


def look(nodes: LocalNodes) -> dict[str, str]:
    found: dict[str, str] = json.loads(run_python("-c", LOOK, **nodes.environment))
    return found


def test_three_nodes_have_an_address_each(nodes: LocalNodes) -> None:
    assert look(nodes) == {node.node_id: node.ip for node in nodes.nodes}
    assert len({node.ip for node in nodes.nodes}) == 3


def test_killed_node_is_noticed_and_comes_back(nodes: LocalNodes) -> None:
    lost = nodes.nodes[2]
    held = json.loads(run_python("-c", HOLD, lost.node_id, **nodes.environment))
    assert held["told"] == "every worker"
    assert {lost.pid, held["actor"], held["child"]} <= list_session(lost.pid)
    others = {node.pid: list_session(node.pid) for node in nodes.nodes[:2]}

    nodes.kill(2)
    assert not list_session(lost.pid)
    assert held["actor"] not in list_processes()
    assert held["child"] not in list_processes()
    assert {pid: list_session(pid) & before for pid, before in others.items()} == others
    print(f"kill noticed after {nodes.states.wait_for(lost.node_id, 'DEAD', NOTICE_SECONDS):.1f} s")

    nodes.start(2)
    assert nodes.nodes[2].node_id != lost.node_id
    assert look(nodes) == {node.node_id: node.ip for node in nodes.nodes}


def test_networks_can_only_be_cut_with_namespaces(nodes: LocalNodes) -> None:
    with pytest.raises(ValueError, match="namespaces=True"):
        nodes.cut(1)


def test_end_leaves_neither_process_nor_folder(nodes: LocalNodes) -> None:
    running = {pid for node in nodes.nodes for pid in list_session(node.pid)}
    assert len(running) > 3
    nodes.close()
    assert [pid for pid in running if pid in list_processes()] == []
    assert not nodes.folder.exists()


def test_script_prints_no_token_and_ends_on_sigterm() -> None:
    command = [sys.executable, "tests/faults/three_nodes.py", "--nodes", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout
        lines = []
        for line in script.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        try:
            variables = dict(line.removeprefix("export ").strip().split("=", 1) for line in lines if "export" in line)
            token = Path(variables["RAY_AUTH_TOKEN"].removeprefix('"$(cat ').removesuffix(')"'))
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
            assert token.read_text() not in "".join(lines)
        finally:
            script.send_signal(signal.SIGTERM)
        assert script.wait(60) == 0
    assert not token.parent.exists()


@pytest.mark.skipif(not os.environ.get("CHAOS_ROUNDS"), reason="CHAOS_ROUNDS is not set: `make chaos` cuts cables")
def test_node_that_is_cut_off_is_noticed_and_comes_back() -> None:
    if not can_make_namespaces():
        pytest.skip("network namespaces need root and `ip`")
    with LocalNodes(namespaces=True) as nodes:
        assert nodes.network
        name, lost = nodes.network.name, nodes.nodes[2]
        assert look(nodes) == {node.node_id: node.ip for node in nodes.nodes}

        nodes.cut(2)
        print(f"cut noticed after {nodes.states.wait_for(lost.node_id, 'DEAD', NOTICE_SECONDS):.1f} s")
        assert lost.pid in list_session(lost.pid)
        with pytest.raises(ValueError, match="mend it"):
            nodes.start(2)

        nodes.mend(2)
        nodes.start(2)
        assert look(nodes) == {node.node_id: node.ip for node in nodes.nodes}
    assert name not in run_ip("link", "show") + run_ip("netns", "list")
