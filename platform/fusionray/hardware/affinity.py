"""Bind a worker to its share of the machine's cores, close to its GPU if it has one. Uses torch, not Ray.

All shares are equal, because the ranks of a synchronous run wait for the slowest one. No core is reserved for decoding:
on a CPU, decoding takes 0.1 ms of a step of 24 ms an image; with a GPU, the compute threads are idle while pictures are
decoded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fusionray.hardware.topology import ROOT, Core, Topology, format_cpus, read_topology


@dataclass(frozen=True)
class Placement:
    """Where a worker computes: logical CPUs, compute threads, NUMA node (None: several or unknown), and the reason."""

    cores: tuple[int, ...]
    threads: int
    node: int | None
    reason: str


def bind_worker(
    local_rank: int,
    num_local: int,
    device: torch.device,
    *,
    threads: int | None = None,
    bind: bool = True,
    peers: Sequence[str | None] | None = None,
) -> Placement:
    """Bind this process with all its threads to its share of the machine, and set torch's thread counts.

    Call it once per process, before torch computes anything: afterwards the process no longer sees which CPUs it was
    allowed. `peers` are the PCI addresses (`gpu_address`) of all local ranks' GPUs, by local rank. Without them, one of
    several workers takes the share that it would have if the workers used all GPUs of the machine.
    """
    topology = read_topology()
    if device.type == "cpu":
        placement = plan_cpu(topology, local_rank, num_local)
    else:
        placement = plan_gpu(topology, local_rank, num_local, gpu_address(device), peers)
    placement = apply_overrides(placement, topology, threads=threads, bind=bind)
    if bind and not bind_threads(placement.cores):
        placement = replace(placement, cores=topology.allowed, node=None, reason="not bound: the system forbids it")
    set_thread_counts(placement.threads)
    return placement


def plan_cpu(topology: Topology, local_rank: int, num_local: int) -> Placement:
    """Divide the allowed cores among the local workers, in the order of NUMA nodes."""
    where = f"share {local_rank + 1} of {num_local} of this machine's cores"
    return plan_share(topology, topology.cores, local_rank, num_local, num_local=num_local, where=where)


def plan_gpu(
    topology: Topology, local_rank: int, num_local: int, address: str | None, peers: Sequence[str | None] | None
) -> Placement:
    """Divide the cores close to a GPU among the workers whose GPUs are close to the same cores."""
    used: Sequence[str | None]
    if peers is not None:
        assert peers[local_rank] == address, "peers are in the order of local ranks"
        used = peers
    else:
        # The GPUs of the other workers are unknown and no core may be assigned twice, so assume that all are used.
        used = [address] if num_local == 1 or address not in topology.gpus else sorted(topology.gpus)
    stray = [gpu for gpu in used if not near_cores(topology, gpu)]
    if stray:
        # A worker without close cores needs some of the others' cores, so all workers divide all cores.
        share = plan_cpu(topology, local_rank, num_local)
        return replace(share, reason=f"{share.reason}; sysfs shows no allowed core next to GPU {stray[0] or 'unknown'}")
    near = near_cores(topology, address)
    sharers = [slot for slot, gpu in enumerate(used) if near_cores(topology, gpu) == near]
    index = sharers.index(local_rank if peers is not None else used.index(address))
    where = f"share {index + 1} of {len(sharers)} of the cores next to GPU {address}"
    return plan_share(topology, near, index, len(sharers), num_local=num_local, where=where)


def near_cores(topology: Topology, address: str | None) -> list[Core]:
    """List the allowed cores close to a GPU; empty if sysfs does not show the GPU."""
    gpu = topology.gpus.get(address) if address else None
    return [core for core in topology.cores if gpu and not gpu.cpus.isdisjoint(core.cpus)]


def plan_share(
    topology: Topology, cores: Sequence[Core], index: int, count: int, *, num_local: int, where: str
) -> Placement:
    """Return part `index` of `count` equal parts of some cores; a CPU quota is divided among all local workers."""
    quota = topology.quota
    if quota is not None and quota < len(topology.allowed):
        # The container does not know which cores it gets; if all containers chose the first ones, they would compete.
        threads = max(1, min(int(quota / num_local), len(cores)))
        reason = f"{where}, undivided: this container gets {quota:g} CPUs, but the system does not say which"
        return Placement(logical(cores), threads, common_node(cores), reason)
    share = divide(cores, index, count)
    return Placement(logical(share), len(share), common_node(share), f"{where}: {format_cpus(logical(share))}")


def logical(cores: Collection[Core]) -> tuple[int, ...]:
    """Return the logical CPUs of some cores."""
    return tuple(sorted(cpu for core in cores for cpu in core.cpus))


def divide(cores: Sequence[Core], index: int, count: int) -> list[Core]:
    """Cut cores into `count` contiguous parts whose sizes differ by at most one.

    With too few cores, hyperthreads are divided, then shared. The order of nodes keeps a part on one node if possible.
    """
    if len(cores) < count:
        cores = [Core((cpu,), core.node) for core in cores for cpu in core.cpus]
    if len(cores) < count:
        return [cores[index % len(cores)]]
    return list(cores[index * len(cores) // count : (index + 1) * len(cores) // count])


def common_node(cores: Collection[Core]) -> int | None:
    """Return the node that all cores lie on, or None."""
    nodes = {core.node for core in cores}
    return nodes.pop() if len(nodes) == 1 else None


def apply_overrides(placement: Placement, topology: Topology, *, threads: int | None, bind: bool) -> Placement:
    """Let the user's settings override the plan."""
    if not bind:
        placement = replace(placement, cores=topology.allowed, node=None, reason="not bound, as configured")
    return replace(placement, threads=threads or placement.threads)


def gpu_address(device: torch.device) -> str | None:
    """Return the PCI address of a GPU as sysfs writes it (`0000:17:00.0`); None if torch does not know it."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(number is None for number in numbers):
        return None
    domain, bus, slot = (int(number) for number in numbers if number is not None)
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def bind_threads(cores: Collection[int], tasks: Path = ROOT / "proc/self/task") -> bool:
    """Bind every thread of this process; return whether the system allowed it.

    Each thread has its own mask, and threads of Ray, Arrow and OpenMP are already running.
    """
    bound: set[int] = set()
    # A thread that is not bound yet may start another one, so look again until no thread is new.
    while fresh := {int(entry.name) for entry in tasks.iterdir()} - bound:
        for thread in fresh:
            try:
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:
                pass  # The thread has ended.
            except OSError:
                return False
        bound |= fresh
    return True


def set_thread_counts(threads: int) -> None:
    """Set torch's compute threads: Ray sets OMP_NUM_THREADS=1, and torch's default is one a core in every worker."""
    torch.set_num_threads(threads)
    # No operators run in parallel here. Torch refuses the setting after such work has begun, which does no harm.
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
