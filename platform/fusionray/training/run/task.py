"""The task that the driver sends to each training worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusionray.data.person_labels import PersonLabels
from fusionray.data.shards import Manifest
from fusionray.recipes.family import DatasetInfo
from fusionray.training.config import TrainConfig


@dataclass(frozen=True)
class WorkerTask:
    """A run as plain data, as its workers need it.

    `labels`: of the people of the training split, if the recipe tells them apart. `dependencies`: what the recipe's
    family loaded. `fencing_token`: only workers with the newest token of a run may publish checkpoints.
    """

    config: TrainConfig
    manifest: Manifest
    run_folder: str
    labels: PersonLabels | None
    dependencies: Mapping[str, Any]
    tracking_run: str
    tracking_uri: str
    fencing_token: str

    @property
    def dataset_info(self) -> DatasetInfo:
        """Return the facts that determine the sizes of the networks."""
        shards = self.manifest
        return self.config.dataset_info(
            num_people=shards.num_people, synthetic=shards.synthetic, skin_regions=shards.skin_regions
        )
