"""Elastic training: fewer workers after the loss of a node, all of them when it returns."""

from __future__ import annotations

import contextlib
import threading

# Intervals at which Ray Train compares its workers with the cluster, and at which its resources are counted. With Ray's
# defaults, 60 s and 20 s, a lost node would cost mostly waiting.
RESIZE_SECONDS = 5.0
REFRESH_SECONDS = 2.0


def refresh_cluster_resources(stop: threading.Event) -> None:
    """Make Ray's AutoscalingCoordinator recount the cluster's resources every `REFRESH_SECONDS` until `stop` is set.

    The actor exists once Ray Train has requested its workers.
    """
    import ray
    import ray.exceptions

    while not stop.wait(REFRESH_SECONDS):
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            coordinator = ray.get_actor("AutoscalingCoordinator", namespace="AutoscalingCoordinator")
            ray.get(coordinator.get_reserved_resources.remote("fusionray", recompute=True), timeout=REFRESH_SECONDS)
