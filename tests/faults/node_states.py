"""The states of a cluster's nodes, read from its head without a driver."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from fusionray.errors import ClusterUnavailable

POLL_SECONDS = 0.25
ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class NodeRow:
    """One start of a node; after a restart it has another `node_id`. `state` is `ALIVE` or `DEAD`."""

    node_id: str
    ip: str
    state: str


class NodeStates:
    """The dashboard's list of nodes. A process can drive only one Ray cluster, and tests drive one already."""

    def __init__(self, dashboard_port: int, token: str) -> None:
        self.dashboard_port = dashboard_port
        self.token = token

    def rows(self) -> list[NodeRow]:
        """Return all nodes that the head has seen; none while it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.dashboard_port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", "/api/v0/nodes?limit=1000", headers={"Authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return []
        finally:
            connection.close()
        if response.status != http.client.OK:
            return []
        found = json.loads(body)["data"]["result"]["result"]
        return [NodeRow(row["node_id"], row["node_ip"], row["state"]) for row in found]

    def wait_for(self, node_id: str, state: str, timeout_seconds: float) -> float:
        """Wait until the head reports a node as `ALIVE` or `DEAD`; return the seconds that it took.

        Raises: ClusterUnavailable if it does not say so in time.
        """
        started = time.monotonic()
        self.wait(lambda row: row.node_id == node_id and row.state == state, timeout_seconds)
        return time.monotonic() - started

    def wait(
        self, wanted: Callable[[NodeRow], bool], timeout_seconds: float, hopeless: Callable[[], bool] = lambda: False
    ) -> NodeRow:
        """Wait for a row that is `wanted` and return it, unless a row is `hopeless`.

        Raises: ClusterUnavailable if there is none in time.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            rows = self.rows()
            for row in rows:
                if wanted(row):
                    return row
            if hopeless() or time.monotonic() > deadline:
                raise ClusterUnavailable(f"the head does not tell of the node that is waited for, only of {rows}")
            time.sleep(POLL_SECONDS)
