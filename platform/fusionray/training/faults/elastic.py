"""Another number of workers in mid-run: fewer when a node is lost, as before when it is back."""

from __future__ import annotations

import contextlib
import threading

# How often Ray Train compares its workers with the cluster, and how often the cluster is counted for it: Ray's own
# 60 s and 20 s would be most of the time that a lost node costs.
RESIZE_SECONDS = 5.0
COUNT_SECONDS = 2.0


def keep_counting(stop: threading.Event) -> None:
    """Ask the counting actor to look anew until told to stop; it is there once Ray Train has asked for its workers."""
    import ray
    import ray.exceptions

    while not stop.wait(COUNT_SECONDS):
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            coordinator = ray.get_actor("AutoscalingCoordinator", namespace="AutoscalingCoordinator")
            ray.get(coordinator.get_reserved_resources.remote("fusionray", recompute=True), timeout=COUNT_SECONDS)
