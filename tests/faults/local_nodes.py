"""Several Ray nodes on this machine, each with its own processes, address, ports and folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusionray.environment import NODE_DEFAULTS
from fusionray.errors import ClusterUnavailable
from tests.faults.namespaces import Network
from tests.faults.node_states import NodeStates
from tests.faults.sessions import has_ended, kill_session, terminate

START_SECONDS = 90.0
END_SECONDS = 10.0
LOG_CHARACTERS = 2000
STORE_BYTES = 100_000_000
# Below the ports of outgoing connections, one of which could be taken between our check and Ray's start.
PORTS = range(20_000, 32_000)

# A killed node refuses the head's health checks at once: it is dead after 3 checks, 3 s. On a node that is cut off
# each check times out: 3 x (2.5 + 1) s, about 10 s. With Ray's defaults, 5 x (10 + 3) s, it would be a minute. The
# first check comes 5 s after a node's start (health_check_initial_delay_ms), when it is busiest; that is unchanged.
# With eight busy loops on two cores, no check failed in 30 s.
QUICK_NOTICE = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2500",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass
class Node:
    """One node: the blocking `ray start` that leads its session, and the node's identity at the head."""

    index: int
    ip: str
    process: subprocess.Popen[bytes]
    node_id: str = ""

    @property
    def pid(self) -> int:
        """The leader of the node's session."""
        return self.process.pid


class LocalNodes:
    """A Ray head and its workers on this machine, with their own folder, ports and token; a context manager.

    `nodes[0]` is the head. `environment` is what a driver needs to reach it.
    """

    def __init__(
        self,
        num_nodes: int = 3,
        cpus: int = 2,
        namespaces: bool = False,
        environment: Mapping[str, str] | None = None,
        *,
        store_bytes: int = STORE_BYTES,
        head_cpus: int | None = None,
        head_options: Sequence[str] = (),
    ) -> None:
        """Describe the nodes; nothing starts before the `with`.

        `cpus` are logical CPUs of each node (of the head: `head_cpus`, if it is not None), `store_bytes` its object
        store; `environment` reaches every node and all of its workers, `head_options` the `ray start` of the head.

        Raises: ValueError if there is no node.
        """
        if num_nodes < 1:
            raise ValueError(f"num_nodes must be at least 1, not {num_nodes}")
        self.num_nodes = num_nodes
        self.cpus = cpus
        self.namespaces = namespaces
        self.extra = dict(environment or {})
        self.store_bytes = store_bytes
        self.head_options = head_options
        self.head_cpus = cpus if head_cpus is None else head_cpus
        self.nodes: list[Node] = []
        self.cut_off: set[int] = set()
        self.seen: set[str] = set()
        self.network: Network | None = None

    def __enter__(self) -> LocalNodes:
        """Start all nodes, one after another: raylets that start at one moment take each other's ports.

        Raises: ClusterUnavailable if one does not come up, or namespaces cannot be made.
        """
        # The path of a socket in it may have 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="fr-nodes-"))
        try:
            self.network = Network() if self.namespaces else None
            # Ray would replace 127.0.0.1 by the machine's address in its network.
            head = self.network.ip if self.network else "127.0.0.2"
            self.gcs_port, self.dashboard_port, self.client_port = free_ports(3)
            self.address = f"{head}:{self.gcs_port}"
            self.environment = {
                "RAY_ADDRESS": self.address,
                "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{self.dashboard_port}",
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": secrets.token_hex(32),
                "RAY_TMPDIR": str(self.folder / "0"),
                "RAY_USAGE_STATS_ENABLED": "0",
            }
            self.states = NodeStates(self.dashboard_port, self.environment["RAY_AUTH_TOKEN"])
            for index in range(self.num_nodes):
                ip = self.network.add(index) if self.network and index else head
                self.launch(index, ip if self.network else f"127.0.0.{index + 2}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that this object started, and remove its folder and namespaces; may be called again."""
        # The head last: a `ray start` that cannot reach the head ignores SIGTERM.
        for node in reversed(self.nodes):
            if node.index not in self.cut_off and not has_ended(self.nodes[0].process):
                terminate(node.process, END_SECONDS)
        # Each step runs even if one before fails, in reverse order.
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            if self.network:
                stack.callback(self.network.close)
                self.network = None
            for node in self.nodes:
                stack.callback(kill_session, node.process)

    def kill(self, index: int) -> None:
        """Kill a whole node at once, like a power failure: `ray start`, raylet and every worker get SIGKILL.

        Returns when its processes are gone, not when the head has noticed. Without the head the others end after a
        minute, and after `start(0)` they are to be started too, unless the head keeps its state (test_head.py).
        """
        kill_session(self.nodes[index].process)

    def start(self, index: int) -> None:
        """Restart a node with its former address; its leftover processes are ended first.

        Returns when the head sees it alive, under a new node id.

        Raises: ClusterUnavailable if it does not come up; ValueError if it is cut off.
        """
        if index in self.cut_off:
            raise ValueError(f"node {index} is cut off: mend it before it is started")
        self.kill(index)
        self.launch(index, self.nodes[index].ip)

    def cut(self, index: int) -> None:
        """Drop all packets between a node and the others; no connection is closed, no process ends.

        Raises: ValueError without namespaces, or for the head, which is not in one.
        """
        self.cable(index).cut(index)
        self.cut_off.add(index)

    def mend(self, index: int) -> None:
        """Forward the packets again. A node that the head has given up ends itself some seconds later.

        Raises: ValueError without namespaces, or for the head.
        """
        self.cable(index).mend(index)
        self.cut_off.discard(index)

    def cable(self, index: int) -> Network:
        if self.network is None or index not in self.network.namespaces:
            raise ValueError(f"node {index} has no cable to cut: it needs namespaces=True, and the head has none")
        return self.network

    def launch(self, index: int, ip: str) -> None:
        command = self.network.enter(index) if self.network and index else []
        command += self.ray_start(index, ip)
        folder = self.folder / str(index)
        folder.mkdir(exist_ok=True)
        # Files of a killed head: the next head would take them for a running Ray.
        (folder / "ray" / "ray_current_cluster").unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {
            **QUICK_NOTICE,
            **NODE_DEFAULTS,
            # No work has to be drained when the nodes end.
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            # By default gloo uses the interface of the host's name, which no namespace has.
            "GLOO_SOCKET_IFNAME": self.network.interface(index) if self.network else "lo",
            **self.extra,
            **self.environment,
            "RAY_TMPDIR": str(folder),
        }
        with (folder / "ray-start.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        node = Node(index, ip, process)
        self.nodes[index : index + 1] = [node]
        node.node_id = self.wait_until_seen(node)

    def ray_start(self, index: int, ip: str) -> list[str]:
        (agent_port,) = free_ports(1)
        role = [f"--address={self.address}"] if index else [
            "--head", f"--port={self.gcs_port}", f"--dashboard-port={self.dashboard_port}",
            f"--ray-client-server-port={self.client_port}", *self.head_options,
        ]  # fmt: skip
        return [
            str(Path(sys.executable).parent / "ray"), "start", "--block", *role,
            f"--node-ip-address={ip}", f"--num-cpus={self.cpus if index else self.head_cpus}",
            f"--object-store-memory={self.store_bytes}",
            f"--temp-dir={self.folder / str(index) / 'ray'}", f"--dashboard-agent-listen-port={agent_port}",
            # Any free port: by default every raylet counts from 10002, so raylets of one machine would collide.
            "--min-worker-port=0", "--max-worker-port=0",
        ]  # fmt: skip

    def wait_until_seen(self, node: Node) -> str:
        try:
            row = self.states.wait(
                lambda row: row.ip == node.ip and row.state == "ALIVE" and row.node_id not in self.seen,
                START_SECONDS,
                hopeless=lambda: has_ended(node.process),
            )
        except ClusterUnavailable as error:
            log = (self.folder / str(node.index) / "ray-start.log").read_text(errors="replace")
            raise ClusterUnavailable(f"node {node.index} did not start ({error}):\n{log[-LOG_CHARACTERS:]}") from None
        self.seen.add(row.node_id)
        return row.node_id


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens, at any address of this machine."""
    found: list[int] = []
    while len(found) < count:
        port = PORTS[secrets.randbelow(len(PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
