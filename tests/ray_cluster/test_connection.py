from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import ray

from fusionray.environment import PRIVATE_CLUSTER_VARIABLE
from fusionray.errors import ClusterUnavailable
from fusionray.hardware.processes import find_processes
from fusionray.ray_cluster import connection
from fusionray.ray_cluster.connection import decide_use_gpu, find_free_port, is_connected, require_cpus, wait_for_cpus
from fusionray.training.config import WorkersConfig
from tests.faults.driver import wait_until
from tests.support.child_python import run_python


@pytest.mark.usefixtures("ray_session")
def test_cpus_that_a_stage_is_about_to_give_back_are_waited_for() -> None:
    # Other tests of the session may hold CPUs of the same Ray, such as a service that is open for all of them.
    free = float(ray.available_resources()["CPU"])

    @ray.remote
    def hold() -> None:
        time.sleep(1)

    held = hold.options(num_cpus=free).remote()
    # Ray reports free CPUs with a delay: it may have missed a task that is over.
    while ray.available_resources().get("CPU", 0.0) >= 1 and not ray.wait([held], timeout=0)[0]:
        time.sleep(0.02)
    assert wait_for_cpus(free) >= free
    ray.get(held)


@pytest.mark.usefixtures("ray_session")
def test_cpus_that_a_cluster_does_not_have_are_not_waited_for() -> None:
    started = time.monotonic()
    assert wait_for_cpus(1e6) < 1e6
    assert time.monotonic() - started < 5


@pytest.mark.usefixtures("ray_session")
def test_a_stage_that_wants_more_cpus_than_there_are_is_refused_by_its_settings() -> None:
    with pytest.raises(ClusterUnavailable, match=r"workers\.num_workers=1000000 x cpus_per_worker=0\.5 needs 500000"):
        require_cpus(1_000_000, 0.5)
    with pytest.raises(ClusterUnavailable, match=r"workers\.min_workers=1000000 x cpus_per_worker=0\.5 needs 500000"):
        require_cpus(1_000_000, 0.5, setting="workers.min_workers")
    require_cpus(1, 0.5)


@pytest.mark.usefixtures("ray_session")
def test_workers_have_the_priority_of_the_command_that_started_ray() -> None:
    @ray.remote(num_cpus=0)
    def read_priority() -> int:
        return os.nice(0)

    assert ray.get(read_priority.remote()) == os.nice(0)


@pytest.mark.usefixtures("ray_session")
def test_workers_get_gpus_only_if_the_cluster_has_enough() -> None:
    gpus = int(ray.cluster_resources().get("GPU", 0))
    too_many = WorkersConfig(num_workers=gpus + 1)
    assert not decide_use_gpu(too_many)
    assert not decide_use_gpu(WorkersConfig(device="cpu"))
    with pytest.raises(ClusterUnavailable, match=rf"needs {gpus + 1} GPUs, but the cluster has {gpus};"):
        decide_use_gpu(too_many.model_copy(update={"device": "cuda"}))


def test_workers_that_compute_on_cpus_for_want_of_gpus_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "count_gpus", lambda: 2.0)
    assert decide_use_gpu(WorkersConfig(num_workers=2))
    assert not decide_use_gpu(WorkersConfig(num_workers=4, device="cpu"))
    assert capsys.readouterr().err == ""
    assert not decide_use_gpu(WorkersConfig(num_workers=4))
    assert capsys.readouterr().err == (
        "4 workers need a GPU each, and the cluster has 2: they compute on CPUs; set workers.num_workers=2 to use the "
        "GPUs\n"
    )
    monkeypatch.setattr(connection, "count_gpus", lambda: 0.0)
    assert not decide_use_gpu(WorkersConfig(num_workers=4))
    assert capsys.readouterr().err == ""


REFUSED = """
import sys
from fusionray.environment import PRIVATE_CLUSTER_VARIABLE
from fusionray.errors import ClusterUnavailable
from fusionray.ray_cluster.connection import cluster, require_cluster

with cluster():
    pass
assert "ray" not in sys.modules, "Ray is imported though nothing needed it"
try:
    require_cluster()
except ClusterUnavailable as error:
    print(error)
"""


STUCK = """
import subprocess, sys, time
import ray
from fusionray.environment import apply_defaults
from fusionray.ray_cluster.connection import cluster, require_cluster

@ray.remote
def leave_behind(name):
    # A process that does not end with the worker: as one that hangs in its exit handlers.
    command = [sys.executable, "-c", "import time; time.sleep(600)", "ray::" + name]
    return subprocess.Popen(command, start_new_session=True).pid

apply_defaults()
with cluster():
    require_cluster()
    print(ray.get(leave_behind.remote(sys.argv[1])))
"""


@pytest.mark.starts_ray
def test_a_worker_that_hangs_at_the_end_of_its_cluster_is_ended(tmp_path: Path) -> None:
    assert int(run_python("-c", STUCK, str(tmp_path)))
    assert find_processes(f"ray::{tmp_path}") == []


ELSEWHERE = """
import sys
from fusionray.ray_cluster.connection import cluster, require_cluster

with cluster(sys.argv[1]):
    require_cluster()
"""


@pytest.mark.usefixtures("ray_session")
def test_a_command_on_another_cluster_leaves_the_private_one_of_its_parent_alone() -> None:
    """As a process of a private cluster runs it: it inherits the variable, and would wait, and then kill."""
    address = ray.get_runtime_context().gcs_address
    own = {PRIVATE_CLUSTER_VARIABLE: "of-the-parent"}
    command = [sys.executable, "-c", "import time; time.sleep(600)", "ray::Bystander"]
    with subprocess.Popen(command, env={**os.environ, **own}) as bystander:
        try:
            found = partial(find_processes, "ray::Bystander", variable=f"{PRIVATE_CLUSTER_VARIABLE}=of-the-parent")
            wait_until("the start of the bystander", lambda: bool(found()))
            run_python("-c", ELSEWHERE, address, **own)
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_a_block_that_needs_no_ray_starts_none() -> None:
    assert "with cluster():" in run_python("-c", REFUSED)


def test_a_thread_that_imports_ray_has_not_connected_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    assert not is_connected()


def test_a_free_port_is_none_that_the_kernel_gives_to_connections() -> None:
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(19999 < find_free_port() < min(first_of_kernel, 32768) for _ in range(20))


def test_a_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        monkeypatch.setattr(connection, "FREE_PORTS", (taken, taken + 1))
        with pytest.raises(ClusterUnavailable, match=f"from {taken} to {taken + 1}"):
            find_free_port()
    assert find_free_port() == taken


def test_a_machine_that_is_too_busy_to_start_ray_gets_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up(**_: object) -> None:
        raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", give_up)
    monkeypatch.setattr(connection, "make_proxy_folder", lambda: tmp_path)
    monkeypatch.setattr(connection, "_proxy_folder", None)
    for name in (PRIVATE_CLUSTER_VARIABLE, connection.FALLBACK_PORT_VARIABLE):
        monkeypatch.setenv(name, "")
    with pytest.raises(ClusterUnavailable, match=r"Ray did not start within 30 s: \d+ processes want the \d+ CPUs"):
        connection.start_local()
