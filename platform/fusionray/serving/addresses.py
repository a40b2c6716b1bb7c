"""On which addresses a service listens, and whether it answers there."""

from __future__ import annotations

import ipaddress
import time
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any

from fusionray.environment import KEY_VARIABLE, is_private_cluster, read_http_host
from fusionray.errors import ConfigInvalid, ServiceFailed

LOOPBACK = "127.0.0.1"
# Every address of a node. They cannot be asked themselves.
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
POLL_SECONDS = 0.02
ANSWER_SECONDS = 5.0


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def write_url(host: str, port: int) -> str:
    """Write the URL of a service; an IPv6 address stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_exposure(host: str, has_keys: bool) -> None:
    """Refuse to listen beyond this machine without a key.

    Raises: ConfigInvalid.
    """
    if not has_keys and not is_loopback(host):
        raise ConfigInvalid(
            f"host {host}: serving beyond loopback needs API keys; set {KEY_VARIABLE} or keys.file, or listen on "
            "127.0.0.1"
        )


def choose_serve_host(host: str, num_nodes: int) -> str:
    """Choose the address that Ray Serve is given, so that the service listens on `host`.

    Ray Serve binds to it the HAProxy of every node, but also the replicas and a proxy of its own, which take requests
    of anybody. In a private cluster these stay on loopback, and HAProxy alone listens on `host`. In another cluster the
    HAProxy of each node has to reach the replicas of all nodes.

    Raises: ConfigInvalid if a service cannot listen on `host` in this cluster.
    """
    if is_private_cluster():
        if read_http_host() == host:
            return LOOPBACK
        if is_loopback(host):
            return host
        raise ConfigInvalid(f"host {host}: this cluster was started for {read_http_host() or LOOPBACK}; start another")
    if host in WILDCARDS or (num_nodes == 1 and is_loopback(host)):
        return host
    raise ConfigInvalid(
        f"host {host}: on an existing cluster a service listens on every node, and its replicas answer each of them; "
        "use 0.0.0.0, and let a firewall guard the ports that docs/replicas.md lists"
    )


def find_address() -> tuple[str, int]:
    """Return the host and port on which the service listens; settings of Ray Serve, not of the application, say so."""
    from ray.serve.context import _get_global_client

    options = _get_global_client().http_config
    return read_http_host() or str(options.host), int(options.port)


def keep_replica_on_loopback() -> None:
    """Let this replica take requests of other replicas on loopback only, in a private cluster.

    Ray Serve binds the gRPC server of each replica to all addresses of the machine, without authentication, and has no
    setting for it (ray/serve/_private/replica.py, `_on_initialized`). The constructor of each deployment, which runs
    before, calls this.
    """
    if not is_private_cluster():
        return
    from ray.serve._private import replica

    bind = replica.add_port_to_grpc_server

    def bind_to_loopback(server: Any, address: str) -> int:
        port: int = bind(server, address.replace("[::]", LOOPBACK))
        return port

    replica.add_port_to_grpc_server = bind_to_loopback


def wait_until_reachable(hosts: list[str], port: int, timeout_seconds: float) -> None:
    """Wait until the service answers on one of `hosts`: HAProxy learns of replicas a moment after these run.

    Raises: ServiceFailed if it does not answer in time.
    """
    deadline = time.monotonic() + timeout_seconds
    while not any(is_ready(host, port) for host in hosts):
        if time.monotonic() > deadline:
            raise ServiceFailed(
                f"the service runs, but {write_url(hosts[0], port)}/readyz does not answer from this machine within "
                f"{timeout_seconds:g} seconds; check the host, the port and the firewall"
            )
        time.sleep(POLL_SECONDS)


def is_ready(host: str, port: int) -> bool:
    """Return whether GET /readyz is answered with 200."""
    connection = HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/readyz")
        with connection.getresponse() as answer:
            return answer.status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
