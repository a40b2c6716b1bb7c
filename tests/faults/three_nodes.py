"""Three Ray nodes on one machine, to try the loss of one of them.

    python tests/faults/three_nodes.py [--nodes 3] [--cpus 2] [--namespaces]

prints what to export in another terminal, the pid of each node, and waits for Ctrl-C; then it ends what it started and
removes its folder. A node is a raylet with all that belongs to it, in a session of its own: `kill -9 -- -PID` is a
machine that lost its power, save for the workers, which lead process groups of their own and end a moment later.

Every node has an address of its own. Without `--namespaces` these are 127.0.0.2, .3 and .4. With it (root, iproute2)
nodes but the head live in network namespaces behind a bridge, and their cables can be cut:
`ip link set <port> down`. The head, and drivers that are started beside it, stay on the side of the machine.

Tests use the class:

    with LocalNodes(environment={"NAME": "for every worker"}) as nodes:
        subprocess.run([...], env={**os.environ, **nodes.environment})
        nodes.kill(2)
        nodes.start(2)
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [entry for entry in (str(ROOT), str(ROOT / "platform")) if entry not in sys.path]

from fusionray.errors import FusionRayError  # noqa: E402
from tests.faults.local_nodes import LocalNodes, Node  # noqa: E402
from tests.faults.namespaces import can_make_namespaces  # noqa: E402

__all__ = ["LocalNodes", "Node", "can_make_namespaces", "main"]


def main() -> int:
    """Run the nodes until Ctrl-C or SIGTERM; exit 1 with one line if they do not start."""
    parser = argparse.ArgumentParser(description="Start several Ray nodes on this machine, and end them on Ctrl-C.")
    parser.add_argument("--nodes", type=int, default=3, help="how many, the head included")
    parser.add_argument("--cpus", type=int, default=2, help="logical CPUs of each")
    parser.add_argument("--namespaces", action="store_true", help="each worker node in a network namespace (root)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        with LocalNodes(options.nodes, options.cpus, options.namespaces) as nodes:
            describe(nodes)
            while True:
                signal.pause()
    except (FusionRayError, ValueError) as error:
        print(f"three_nodes: {error}", file=sys.stderr)
        return 1


def stop(*_: int | FrameType | None) -> None:
    """Leave the `with` once: a second Ctrl-C must not leave processes behind."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(0)


def describe(nodes: LocalNodes) -> None:
    """Print the settings of a driver, with the token's file instead of the token, and each node's pid."""
    token = nodes.folder / "token"
    token.touch(mode=0o600)
    token.write_text(nodes.environment["RAY_AUTH_TOKEN"])
    for name, value in nodes.environment.items():
        print(f'export {name}="$(cat {token})"' if name == "RAY_AUTH_TOKEN" else f"export {name}={value}")
    for node in nodes.nodes:
        port = f", cable {nodes.network.port(node.index)}" if nodes.network and node.index else ""
        print(f"# node {node.index}: pid {node.pid}, {node.ip}{port}")
    print("# Ctrl-C ends them", flush=True)


if __name__ == "__main__":
    sys.exit(main())
