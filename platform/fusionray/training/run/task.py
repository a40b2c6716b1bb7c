"""What a training worker is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusionray.data.shards import Manifest
from fusionray.recipes.family import DataFacts
from fusionray.training.config import TrainConfig


@dataclass(frozen=True)
class WorkerTask:
    """Everything that a worker needs to know of a run, as plain data.

    `people`: those of the training split, empty for shards of pictures. `dependencies`: what the family loaded.
    """

    config: TrainConfig
    manifest: Manifest
    run_folder: str
    people: list[str]
    dependencies: Mapping[str, Any]
    tracking_run: str
    tracking_uri: str
    owner: str

    @property
    def facts(self) -> DataFacts:
        """Say what the networks are sized for."""
        return self.config.state_facts(num_people=len(self.people), synthetic=self.manifest.synthetic)
