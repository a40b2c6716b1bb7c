"""End the workers of a run whose controller died, so that their CPUs and GPUs are free for its next start.

The placement group of Ray Train's workers belongs to the controller and to the job: Ray removes it when both have
ended. If the controller dies alone, for example with the process of a trial, the resources stay reserved as long as the
job lasts. Ray Train's own remedy, an actor that asks the dashboard whether the controller lives, needs a dashboard.

Source: ray 2.60, src/ray/gcs/gcs_placement_group.h, `IsPlacementGroupLifetimeDone`.
"""

from __future__ import annotations

from typing import Any

from ray._raylet import PlacementGroupID
from ray.experimental import internal_kv
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

NAMESPACE = "fusionray-workers"


class RecordWorkers(WorkerGroupCallback):  # type: ignore[misc, unused-ignore]
    """Record the placement group of a run's workers; runs in Ray Train's controller."""

    def __init__(self, run_folder: str) -> None:
        self.run_folder = run_folder

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Replace the record: Ray Train has removed the group before."""
        group = worker_group.get_worker_group_state().placement_group_handle.placement_group
        internal_kv._internal_kv_put(self.run_folder, group.id.hex(), namespace=NAMESPACE)


def end_leftover_workers(run_folder: str) -> None:
    """Remove the placement group that a dead controller of a run has left, with its workers; call it between starts."""
    recorded = internal_kv._internal_kv_get(run_folder, namespace=NAMESPACE)
    if recorded is None:
        return
    group = PlacementGroup(PlacementGroupID.from_hex(recorded.decode()))
    if placement_group_table(group).get("state", "REMOVED") != "REMOVED":
        remove_placement_group(group)
    internal_kv._internal_kv_del(run_folder, namespace=NAMESPACE)
