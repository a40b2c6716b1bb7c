"""What nodes of a cluster tell of the head: where it keeps its state, and at which address rank 0 is waited for."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from fusionray.doctor.finding import Finding

# What a node tells, of the environment in which its Ray was started.
ASKED = ("MASTER_ADDR", "RAY_gcs_storage", "RAY_REDIS_ADDRESS")


def judge_gcs_storage(head: str, variables: Mapping[str, str], num_nodes: int) -> Iterator[Finding]:
    """Judge where the head keeps what it knows; a node alone has nothing to come back to."""
    if num_nodes < 2:
        return
    if variables.get("RAY_REDIS_ADDRESS"):
        yield Finding("GCS storage", "ok", "it is kept in Redis", node=head)
    elif variables.get("RAY_gcs_storage", "memory") == "memory":
        evidence = "it is kept in memory: if the head ends, all nodes and jobs end"
        remedy = "RAY_gcs_storage=rocksdb, and RAY_gcs_storage_path on a disk that lasts (docs/faults.md)"
        yield Finding("GCS storage", "note", evidence, remedy, "fix setting", head)
    else:
        yield Finding("GCS storage", "ok", f"it is kept in {variables['RAY_gcs_storage']}", node=head)


def judge_master(head: str, gpus: Mapping[str, int], masters: Mapping[str, str]) -> Iterator[Finding]:
    """Judge the addresses of rank 0 that were set by hand, and tell where it runs if the head has no GPU.

    `gpus` by node; `masters`: MASTER_ADDR of nodes that it names themselves. Where it names another, the check of that
    node tells it.
    """
    with_gpus = [node for node, number in gpus.items() if number]
    for node, address in masters.items():
        if with_gpus and not gpus.get(node):
            evidence = (
                f"MASTER_ADDR={address} is this node, which has no GPU: rank 0 runs on one of {len(with_gpus)} others"
            )
        elif len(gpus) > 1 and is_loopback(address):
            evidence = f"MASTER_ADDR={address}, and there are {len(gpus)} nodes: each waits for rank 0 at itself"
        else:
            continue
        remedy = "unset it where Ray starts: Ray Train sets it in each worker, to the node of rank 0"
        yield Finding("master address", "warning", evidence, remedy, "fix setting", node)
    if with_gpus and not gpus.get(head):
        named = ", ".join(with_gpus[:3]) + (", ..." if len(with_gpus) > 3 else "")
        evidence = f"the head has no GPU: rank 0 of Ray Train, and so the master address, is one of {named}"
        yield Finding("master address", "ok", evidence, node=head)


def is_loopback(address: str) -> bool:
    """Tell whether an address, or a name, is the machine itself for everybody."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
