"""The task that the driver sends to each training worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusionray.data.shards import Manifest
from fusionray.recipes.family import DatasetInfo
from fusionray.training.config import TrainConfig


@dataclass(frozen=True)
class WorkerTask:
    """A run as plain data, as its workers need it.

    `people`: names of the training split, empty for shards of pictures. `dependencies`: what the family loaded.
    `fencing_token`: only workers with the newest token of a run may publish checkpoints.
    """

    config: TrainConfig
    manifest: Manifest
    run_folder: str
    people: list[str]
    dependencies: Mapping[str, Any]
    tracking_run: str
    tracking_uri: str
    fencing_token: str

    @property
    def dataset_info(self) -> DatasetInfo:
        """Return the facts that determine the sizes of the networks."""
        return self.config.dataset_info(num_people=len(self.people), synthetic=self.manifest.synthetic)
