"""Start Ray on one machine without three of its processes that would do nothing there.

Ray starts the process of its dashboard even where none is wanted, and waits until it has imported its modules; it
starts the monitor of its autoscaler, though one machine has nothing to scale; and a process that reads all logs again
and again for drivers, of which there is one here that wants none (`log_to_driver=False`). Without the first two Ray is
up 2 s earlier on two cores, and ends 1 s earlier; the third took 0.4 s of CPU at each start. No public option leaves
them out: the methods are of Ray 2.60, and where a later Ray has them no more, it starts as it always does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def light_head() -> Iterator[None]:
    """Leave out the three processes of a Ray that starts in the `with` block."""
    from ray._private.node import Node

    instead = {
        "start_api_server": announce_no_dashboard,
        "start_monitor": start_nothing,
        "start_log_monitor": start_nothing,
    }
    before = {name: getattr(Node, name) for name in instead if hasattr(Node, name)}
    try:
        for name in before:
            setattr(Node, name, instead[name])
        yield
    finally:
        for name, method in before.items():
            setattr(Node, name, method)


def announce_no_dashboard(node: Any, **_: Any) -> None:
    """Write the address that Ray's agents wait for: that of a dashboard which answers nothing, as Ray does."""
    from ray._private.ray_constants import DASHBOARD_ADDRESS, KV_NAMESPACE_DASHBOARD

    address = f"{node.node_ip_address}:0".encode()
    node.get_gcs_client().internal_kv_put(DASHBOARD_ADDRESS.encode(), address, True, KV_NAMESPACE_DASHBOARD)


def start_nothing(node: Any) -> None:
    """Start no process."""
