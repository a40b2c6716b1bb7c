from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fusionray.doctor import container
from tests.doctor.broken_host import BrokenHost, build, seen

GIB = 2**30
MEMINFO = f"MemTotal:       {64 * 2**20} kB\nMemFree:        1000 kB\n"
DOCKER = {".dockerenv": ""}
HOST_GPUS = {f"proc/driver/nvidia/gpus/0000:{number}9:00.0/information": "Model: NVIDIA H100" for number in (1, 2)}


@pytest.mark.parametrize(
    ("files", "variables", "wanted"),
    [
        (DOCKER, {}, True),
        ({"run/.containerenv": ""}, {}, True),
        ({"proc/1/cgroup": "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope\n"}, {}, True),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, False),
    ],
)
def test_a_container_is_told_from_a_machine(
    tmp_path: Path, files: Mapping[str, str], variables: Mapping[str, str], wanted: bool
) -> None:
    assert container.is_container(build(tmp_path, files, **variables)) is wanted


def test_gpus_that_stay_outside_the_container_are_found(tmp_path: Path) -> None:
    host = build(tmp_path / "docker", {**DOCKER, **HOST_GPUS})
    (found,) = container.check_container(host)
    assert (found.severity, found.action) == ("warning", "fix setting")
    assert found.evidence == "the host has 2 GPUs, this container has none of them"
    assert "--gpus all" in found.remedy
    # Those that ask for none, have one, or have a host without any.
    host.environment = {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert list(container.check_container(host)) == []
    for name, files in (("one", {**DOCKER, **HOST_GPUS, "dev/nvidia0": ""}), ("none", DOCKER), ("bare", HOST_GPUS)):
        assert list(container.check_container(build(tmp_path / name, files))) == []


def limit_memory(root: Path, files: Mapping[str, str]) -> list[tuple[str, str, str]]:
    host = build(root, {"proc/meminfo": MEMINFO, **files})
    return seen(container.check_memory_limit(host))


def test_a_limit_of_memory_is_a_note_and_a_warning_where_ray_overlooks_it(tmp_path: Path) -> None:
    note, warning = ("memory limit", "note", "none"), ("memory limit", "warning", "fix setting")
    two = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{16 * GIB}\n"}
    assert limit_memory(tmp_path / "docker", two) == [note]
    assert limit_memory(tmp_path / "free", {**two, "sys/fs/cgroup/memory.max": "max\n"}) == []
    assert limit_memory(tmp_path / "large", {**two, "sys/fs/cgroup/memory.max": f"{128 * GIB}\n"}) == []
    # A slice of systemd or Slurm: Ray reads the mount alone.
    slice_ = {
        "proc/self/cgroup": "0::/slurm/job_7/step\n",
        "sys/fs/cgroup/slurm/job_7/memory.max": f"{16 * GIB}\n",
        "sys/fs/cgroup/slurm/job_7/step/memory.max": "max\n",
    }
    assert limit_memory(tmp_path / "slice", slice_) == [warning]
    # Version 1, whose unlimited is a large number; in a container the path is that of the host.
    one = {"proc/self/cgroup": "4:memory:/docker/0f3c\n9:name=systemd:/\n"}
    mount = "sys/fs/cgroup/memory/memory.limit_in_bytes"
    assert limit_memory(tmp_path / "one", {**one, mount: f"{8 * GIB}\n"}) == [note]
    assert limit_memory(tmp_path / "any", {**one, mount: "9223372036854771712\n"}) == []
    assert limit_memory(tmp_path / "nothing", {}) == []


def test_the_remedy_for_memory_names_what_ray_takes(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": f"{10 * GIB}"}
    (found,) = container.check_memory_limit(build(tmp_path, files))
    assert found.evidence == "the control group allows 10.0 of 64.0 GiB, Ray counts 64.0"
    assert f"--memory={7 * GIB} --object-store-memory={3 * GIB}" in found.remedy


@pytest.mark.parametrize(
    ("files", "counts", "variables", "wanted"),
    [
        ({}, (16, 16), {}, (None, 16)),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, (16, 16), {}, (None, 16)),
        ({"sys/fs/cgroup/cpu.max": "250000 100000\n"}, (16, 16), {}, ("note", 2)),
        # With half a CPU Ray counts none.
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, (16, 16), {}, ("warning", 0)),
        (
            {"sys/fs/cgroup/cpu.max": "250000 100000\n"},
            (16, 16),
            {"RAY_USE_MULTIPROCESSING_CPU_COUNT": "1"},
            ("warning", 16),
        ),
        # A quota of a group below the mount, and a set of CPUs in version 2: Ray sees neither.
        (
            {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "400000 100000\n"},
            (16, 16),
            {},
            ("warning", 16),
        ),
        ({}, (16, 4), {}, ("warning", 16)),
        # Version 1 has both.
        ({"sys/fs/cgroup/cpuset/cpuset.cpus": "0-3\n"}, (16, 4), {}, ("note", 4)),
        (
            {
                "proc/self/cgroup": "1:cpu:/docker/0f3c\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "800000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            (16, 16),
            {},
            ("note", 8),
        ),
        (
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            (16, 16),
            {},
            (None, 16),
        ),
    ],
)
def test_a_limit_of_cpus_is_compared_with_what_ray_counts(
    tmp_path: Path,
    files: Mapping[str, str],
    counts: tuple[int, int],
    variables: Mapping[str, str],
    wanted: tuple[str | None, int],
) -> None:
    severity, counted = wanted
    host: BrokenHost = build(tmp_path, {"proc/self/cgroup": "0::/\n", **files}, **variables)
    host.cpu_counts = counts
    found = list(container.check_cpu_limit(host))
    assert [each.severity for each in found] == ([] if severity is None else [severity])
    assert container.count_ray_cpus(host, counts[0]) == counted
    assert all(f"Ray counts {counted}" in each.evidence for each in found)
