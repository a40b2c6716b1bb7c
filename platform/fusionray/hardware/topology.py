"""The CPUs and GPUs that a process may use: cores by NUMA node, the CPU quota, GPUs and the cores close to them.

All files are read below a root folder, so that a test can lay out any machine. A `CPU` is a logical one, as Linux
counts them; a core is one or more CPUs that share its units.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path("/")
GPU_VENDORS = frozenset({"0x10de", "0x1002"})  # NVIDIA and AMD; the display chip of a server is of another vendor
GPU_CLASSES = ("0x03", "0x12")  # display controllers and processing accelerators


@dataclass(frozen=True)
class Core:
    """One core: its logical CPUs that this process may use, and its NUMA node (None: unknown)."""

    cpus: tuple[int, ...]
    node: int | None


@dataclass(frozen=True)
class PciGpu:
    """A GPU by PCI address, with the logical CPUs close to it."""

    address: str
    node: int | None
    cpus: frozenset[int]


@dataclass(frozen=True)
class Topology:
    """Cores in the order of NUMA nodes; `quota` in CPUs (None: no limit); GPUs by PCI address."""

    cores: tuple[Core, ...]
    quota: float | None
    gpus: Mapping[str, PciGpu]

    @property
    def allowed(self) -> tuple[int, ...]:
        """Logical CPUs that this process may use."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))


def read_topology(root: Path = ROOT, allowed: Collection[int] | None = None) -> Topology:
    """Read the topology; `allowed` are the CPUs that this process may use, by default its own mask."""
    mask = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    nodes = read_nodes(root / "sys/devices/system/node")
    cores = {read_siblings(root / "sys/devices/system/cpu", cpu) & mask for cpu in mask}
    placed = [Core(tuple(sorted(cpus)), nodes.get(min(cpus))) for cpus in cores]
    placed.sort(key=lambda core: (-1 if core.node is None else core.node, core.cpus))
    gpus = {gpu.address: gpu for gpu in read_gpus(root / "sys/bus/pci/devices", mask)}
    return Topology(tuple(placed), read_quota(root), gpus)


def read_nodes(folder: Path) -> dict[int, int]:
    """Map each CPU to its NUMA node; empty if the system shows none."""
    return {
        cpu: int(entry.parent.name.removeprefix("node"))
        for entry in folder.glob("node[0-9]*/cpulist")
        for cpu in parse_cpus(entry.read_text())
    }


def read_siblings(folder: Path, cpu: int) -> frozenset[int]:
    """Return the CPUs that share a core with this one, and the CPU itself."""
    siblings = read_text(folder / f"cpu{cpu}/topology/thread_siblings_list")
    return frozenset(parse_cpus(siblings)) | {cpu} if siblings else frozenset({cpu})


def read_gpus(folder: Path, mask: frozenset[int]) -> Iterator[PciGpu]:
    """Find the GPUs on the PCI bus; a GPU of unknown place counts as close to all CPUs."""
    for entry in sorted(folder.glob("*")):
        vendor, kind = read_text(entry / "vendor"), read_text(entry / "class")
        if vendor in GPU_VENDORS and kind.startswith(GPU_CLASSES):
            node = int(read_text(entry / "numa_node") or -1)
            cpus = frozenset(parse_cpus(read_text(entry / "local_cpulist")))
            yield PciGpu(entry.name, node if node >= 0 else None, cpus or mask)


def read_quota(root: Path) -> float | None:
    """Read the limit of CPU time, in CPUs: the least of this process's control group and of all groups above it."""
    limits = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += list(read_limits(root / "sys/fs/cgroup", path, "cpu.max"))
        elif "cpu" in controllers.split(","):
            limits += list(read_limits(root / "sys/fs/cgroup" / controllers, path, "cpu.cfs_quota_us"))
    return min(limits, default=None)


def read_limits(mount: Path, path: str, name: str) -> Iterator[float]:
    """Yield the limits of a control group and of those above it, version 2 (`200000 100000`) or 1 (two files)."""
    # In a container the path may be the host's, of which only the mount exists; so the mount itself counts too.
    group = mount / path.strip("/")
    for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(mount))):
        words = read_text(folder / name).split()
        if len(words) == 1:
            words.append(read_text(folder / "cpu.cfs_period_us"))
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            yield int(words[0]) / int(words[1])


def read_text(path: Path) -> str:
    """Read a file of the system; empty if it does not exist: containers hide some, old kernels lack some."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def parse_cpus(text: str) -> list[int]:
    """Parse a list of CPUs as Linux writes it: `0-2,8` is 0, 1, 2, 8."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def format_cpus(cpus: Collection[int]) -> str:
    """Format a list of CPUs as Linux does, the inverse of `parse_cpus`."""
    runs = [[cpu for _, cpu in run] for _, run in groupby(enumerate(sorted(cpus)), key=lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
