"""A service on a cluster of three nodes, asked from a foreign host: it answers on each, and scales over all.

Nodes and client live in network namespaces of their own, so that every request crosses a network.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fusionray.environment import serve_defaults
from fusionray.ray_cluster.connection import find_free_port
from tests.faults.three_nodes import LocalNodes, can_make_namespaces
from tests.support.child_python import ROOT, run_python
from tests.support.tiny_bundle import write_tiny_bundle
from tests.support.waiting import wait_for

pytestmark = pytest.mark.starts_ray

KEY = "a-key-of-the-operator-for-tests"
CLIENT = 9
# Two cores start the processes of three nodes, and answer meanwhile.
CHANGE_SECONDS = 150
# Each replica takes more than half of a node.
SCALING = ["ingress.cpus=1.5", "ingress.target_ongoing_requests=1", "ingress.downscale_delay_seconds=3"]
WHERE = """
import json, ray
from ray.util.state import list_actors
ray.init(log_to_driver=False)
found = list_actors(filters=[("state", "=", "ALIVE"), ("class_name", "=", "ServeReplica:fusionray:Ingress")])
print(json.dumps([actor.node_id for actor in found]))
"""


@dataclass(frozen=True)
class Cluster:
    """A running service, and how commands run on the client's host."""

    nodes: LocalNodes
    port: int
    enter: list[str]

    def urls(self) -> list[str]:
        """The service, by the address of each node."""
        return [f"http://{node.ip}:{self.port}" for node in self.nodes.nodes]

    def client(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the client on its host; it reads a line to know when to end."""
        command = [*self.enter, sys.executable, str(Path(__file__).with_name("remote_client.py")), *arguments]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}", "FUSIONRAY_API_KEY": KEY}
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )

    def count_answers(self, *arguments: str, until: Callable[[], bool]) -> Counter[str]:
        """Let clients send requests until a condition holds; return how often each status was answered."""
        with self.client(*arguments) as running:
            try:
                wait_for(until, CHANGE_SECONDS)
            finally:
                answers, _ = running.communicate("end\n")
        return Counter(json.loads(answers))

    def replicas(self) -> list[str]:
        """The node of each replica."""
        found: list[str] = json.loads(run_python("-c", WHERE, **self.nodes.environment))
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not can_make_namespaces():
        pytest.skip("network namespaces need root, `ip` and `nsenter`")
    folder = tmp_path_factory.mktemp("three-nodes")
    bundle = write_tiny_bundle(folder / "bundle")
    with LocalNodes(namespaces=True, environment=serve_defaults()) as nodes:
        assert nodes.network is not None
        nodes.network.add(CLIENT)
        found = Cluster(nodes, find_free_port(), nodes.network.enter(CLIENT))
        with service(found, str(bundle.folder), folder):
            yield found


@contextmanager
def service(cluster: Cluster, bundle: str, folder: Path) -> Iterator[None]:
    """Run `fusionray serve` beside the head."""
    stores = [f"identities.folder={folder / 'identities'}", f"jobs.folder={folder / 'jobs'}"]
    command = [sys.executable, "-m", "fusionray.cli", "serve", "--bundle", bundle, *stores, *SCALING]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables: dict[str, Any] = {
        **inherited,
        **serve_defaults(),
        **cluster.nodes.environment,
        "PYTHONPATH": str(ROOT / "platform"),
        "FUSIONRAY_API_KEY": KEY,
    }
    running = subprocess.Popen(
        [*command, "--host", "0.0.0.0", "--port", str(cluster.port)],
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
    )
    try:
        assert running.stdout is not None
        assert f":{cluster.port}" in running.stdout.readline()
        yield
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.communicate()


@pytest.mark.slow(seconds=60)
def test_every_node_answers_a_foreign_host(cluster: Cluster) -> None:
    for url in cluster.urls():
        with cluster.client("once", url) as asked:
            answers, _ = asked.communicate("end\n")
        assert Counter(json.loads(answers)) == {"200": 1, "401": 1}, url


@pytest.mark.slow(seconds=60)
def test_replicas_come_on_every_node_and_go_and_no_request_fails(cluster: Cluster) -> None:
    every = {node.node_id for node in cluster.nodes.nodes}
    assert len(cluster.replicas()) == 1
    answers = cluster.count_answers("load", *cluster.urls(), until=lambda: set(cluster.replicas()) == every)
    answers += cluster.count_answers("quiet", *cluster.urls(), until=lambda: len(cluster.replicas()) == 1)
    assert answers.keys() == {"200"}
    assert answers["200"] > 100
