"""Checks of names, interfaces, proxies and InfiniBand: what several nodes need to find each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "grpc_proxy")
# Bytes that NCCL and its buffers take at least.
LEAST_LOCKED = 2**30
# Counters of an InfiniBand port that grow when its cable or plug is bad.
COUNTERS = ("symbol_error", "link_downed", "port_rcv_errors")


def check_host_name(host: Host) -> Iterator[Finding]:
    """Look which address the machine's name has: gloo tells it to the workers of other nodes."""
    name, address = host.resolve()
    remedy = f"set {GLOO} to the interface of the cluster's network (`ip -brief address`), or mend /etc/hosts"
    if address is None:
        yield Finding("host name", "warning", f"{name} has no address here", remedy, "fix setting")
    elif ipaddress.ip_address(address).is_loopback and GLOO not in host.environment:
        evidence = f"{name} is {address}: workers of other nodes cannot connect to it"
        yield Finding("host name", "note", evidence, f"for several nodes, {remedy}", "fix setting")
    else:
        yield Finding("host name", "ok", f"{name} is {address}")


def check_interfaces(host: Host) -> Iterator[Finding]:
    """Look whether the interfaces exist that variables choose."""
    there = [path.rpartition("/")[2] for path in host.list("/sys/class/net/*")]
    for variable in (GLOO, NCCL):
        chosen = host.environment.get(variable)
        if not chosen:
            continue
        # NCCL takes beginnings of names, "=" before whole ones, and "^" before those to leave out.
        names = [each.strip().lstrip("=") for each in chosen.split(",") if not chosen.startswith("^")]
        missing = [name for name in names if not any(each.startswith(name) for each in there)]
        evidence = f"{variable}={chosen}; there are {', '.join(there)}"
        if missing:
            remedy = f"{missing[0]} is none of them: set {variable} to one that is (`ip -brief address`)"
            yield Finding("interface", "error", evidence, remedy, "fix setting")
        else:
            yield Finding("interface", "ok", evidence)


def check_proxies(host: Host) -> Iterator[Finding]:
    """Look for HTTP proxies, which Ray's gRPC would use between nodes."""
    found = [name for name in PROXIES if host.environment.get(name)]
    if found and not (host.environment.get("no_proxy") or host.environment.get("NO_PROXY")):
        remedy = "set no_proxy to the addresses of the nodes, and to 127.0.0.1,localhost"
        yield Finding("proxy", "warning", f"{', '.join(found)} set, no_proxy is not", remedy, "fix setting")


def check_infiniband(host: Host) -> Iterator[Finding]:
    """Look at the state and the error counters of InfiniBand and RoCE ports."""
    for port in host.list("/sys/class/infiniband/*/ports/*"):
        device, number = port.split("/")[4], port.rpartition("/")[2]
        state = (host.read(f"{port}/state") or "unknown").strip()
        rate = (host.read(f"{port}/rate") or "").strip()
        name = f"{device} port {number}"
        if "ACTIVE" not in state:
            remedy = "look at cable, switch and `ibstat`; leave the port out with NCCL_IB_HCA until it is mended"
            yield Finding("InfiniBand", "error", f"{name}: {state}", remedy, "isolate node")
            continue
        counts = {each: (host.read(f"{port}/counters/{each}") or "0").strip() for each in COUNTERS}
        grown = {each: count for each, count in counts.items() if count not in ("", "0")}
        if grown:
            evidence = f"{name}: {', '.join(f'{each} {count}' for each, count in grown.items())}"
            remedy = "clean or change the cable, reset the counters (`perfquery -x -r`), and look again"
            yield Finding("InfiniBand", "warning", evidence, remedy, "isolate node")
        else:
            yield Finding("InfiniBand", "ok", f"{name}: {state}, {rate}")


def check_locked_memory(host: Host) -> Iterator[Finding]:
    """Look whether InfiniBand may lock the memory that it sends from."""
    if not host.list("/sys/class/infiniband/*"):
        return
    limit = host.locked_memory()
    if 0 <= limit < LEAST_LOCKED:
        remedy = "set `ulimit -l unlimited` (LimitMEMLOCK=infinity of the container runtime or the systemd unit)"
        evidence = f"a process may lock {limit // 1024:,} KiB: NCCL cannot register its buffers"
        yield Finding("locked memory", "error", evidence, remedy, "fix setting")
    else:
        yield Finding("locked memory", "ok", "unlimited" if limit < 0 else f"{limit // 2**20:,} MiB")
