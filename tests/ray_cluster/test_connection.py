from __future__ import annotations

import time

import pytest
import ray

from fusionray.errors import ClusterUnavailable
from fusionray.ray_cluster.connection import require_cpus, wait_for_cpus


@pytest.mark.usefixtures("ray_session")
def test_cpus_that_a_stage_is_about_to_give_back_are_waited_for() -> None:
    # Other tests of the session may hold CPUs of the same Ray, such as a service that is open for all of them.
    free = float(ray.available_resources()["CPU"])

    @ray.remote
    def hold() -> None:
        time.sleep(1)

    held = hold.options(num_cpus=free).remote()
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0.0) >= 1 and time.monotonic() < deadline:
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
    require_cpus(1, 0.5)
