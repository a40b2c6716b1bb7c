"""Checks of containers and control groups: GPUs that stay outside, and limits that Ray counts, or overlooks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fusionray.doctor.finding import Finding
from fusionray.doctor.host import Host
from fusionray.hardware.memory import CGROUP, list_groups
from fusionray.hardware.topology import parse_cpus, read_quota

MARKS = ("/.dockerenv", "/run/.containerenv")
RUNTIMES = re.compile(r"docker|kubepods|containerd|libpod|lxc|crio")
# Values of NVIDIA_VISIBLE_DEVICES by which a container asks for no GPU.
NO_GPUS = ("void", "none")
GIB = 2**30
# What Ray reads, version 1 before 2: the mount itself and no group below it. Source: ray/_common/utils.py and
# ray/_private/utils.py (get_system_memory, get_num_cpus) of Ray 2.60.
RAY_MEMORY_FILES = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max")


def is_container(host: Host) -> bool:
    """Tell whether this process runs in a container."""
    return (
        any(host.read(mark) is not None for mark in MARKS)
        or "KUBERNETES_SERVICE_HOST" in host.environment
        or RUNTIMES.search(host.read("/proc/1/cgroup") or "") is not None
    )


def check_container(host: Host) -> Iterator[Finding]:
    """Look for GPUs of the host that a container does not have."""
    # With device files but no answer, the checks of GPUs and of torch tell it.
    if not is_container(host) or host.num_gpus:
        return
    outside = len(host.list("/proc/driver/nvidia/gpus/*"))
    asked = host.environment.get("NVIDIA_VISIBLE_DEVICES")
    if outside and asked not in NO_GPUS:
        evidence = f"the host has {outside} GPUs, this container has none of them"
        remedy = (
            "start it with --gpus all (NVIDIA container toolkit), on Kubernetes with a limit of nvidia.com/gpu; "
            "if it needs none, set NVIDIA_VISIBLE_DEVICES=void"
        )
        yield Finding("container", "warning", evidence, remedy, "fix setting")


def check_memory_limit(host: Host) -> Iterator[Finding]:
    """Compare the memory that the control group allows with what the machine has, and with what Ray counts."""
    found = re.search(r"MemTotal:\s+(\d+)", host.read("/proc/meminfo") or "")
    limit = min(read_memory_limits(host), default=None)
    if found is None or limit is None or limit >= int(found[1]) * 1024:
        return
    total = int(found[1]) * 1024
    counted = min(total, next(iter(read_numbers(host, RAY_MEMORY_FILES)), total))
    evidence = f"the control group allows {limit / GIB:.1f} of {total / GIB:.1f} GiB"
    if counted > limit:
        remedy = f"`ray start --memory={int(0.7 * limit)} --object-store-memory={int(0.3 * limit)}`: Linux kills beyond"
        yield Finding("memory limit", "warning", f"{evidence}, Ray counts {counted / GIB:.1f}", remedy, "fix setting")
    else:
        yield Finding("memory limit", "note", f"{evidence}; Ray plans with that", "raise it if runs need more", "none")


def read_memory_limits(host: Host) -> list[int]:
    """Read the limits of this process's control group and of all above it, in bytes."""
    groups = list_groups(host.read("/proc/self/cgroup") or "", CGROUP)
    return read_numbers(host, [str(folder / names[0]) for folder, names in groups])


def read_numbers(host: Host, paths: Iterator[str] | list[str] | tuple[str, ...]) -> list[int]:
    """Read the files that hold a number: a limit that is not set is `max`."""
    texts = ((host.read(path) or "").strip() for path in paths)
    return [int(text) for text in texts if text.isdigit()]


def check_cpu_limit(host: Host) -> Iterator[Finding]:
    """Compare the CPUs that this process may use with what the machine has, and with what Ray counts."""
    count, allowed = host.cpus()
    quota = read_quota(host.root)
    limit = min(float(allowed), quota if quota is not None else float(count))
    counted = count_ray_cpus(host, count)
    evidence = f"{limit:g} of {count} CPUs may be used, Ray counts {counted} if it is not told"
    if counted == 0:
        remedy = "raise the quota to a whole CPU at least, or `ray start --num-cpus=1`: no task would ever run"
        yield Finding("CPU limit", "warning", evidence, remedy, "fix setting")
    elif counted > limit:
        remedy = f"`ray start --num-cpus={max(1, int(limit))}`: Ray would run more tasks at once than there are CPUs"
        yield Finding("CPU limit", "warning", evidence, remedy, "fix setting")
    elif limit < count:
        yield Finding("CPU limit", "note", evidence, "raise the quota if runs need more", "none")


def count_ray_cpus(host: Host, count: int) -> int:
    """Count the CPUs as `ray start` does without --num-cpus: the quota of the mount, and cpusets of version 1 alone."""
    if host.environment.get("RAY_USE_MULTIPROCESSING_CPU_COUNT"):
        return count
    words = (host.read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or "").split()
    words += (host.read("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or "").split()
    words = words or (host.read("/sys/fs/cgroup/cpu.max") or "").split()
    limits: list[float] = []
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
        limits.append(int(words[0]) / int(words[1]))
    cpuset = parse_cpus(host.read("/sys/fs/cgroup/cpuset/cpuset.cpus") or "")
    if cpuset:
        limits.append(len(cpuset))
    return int(min(limits, default=count))
