"""What a training worker is told."""

from __future__ import annotations

from dataclasses import dataclass

from fusionray.data.shards import Manifest
from fusionray.evaluation.evaluators import EvaluatorPaths
from fusionray.training.build import EncoderState
from fusionray.training.config import TrainConfig


@dataclass(frozen=True)
class WorkerTask:
    """Everything that a worker needs to know of a run, as plain data."""

    config: TrainConfig
    manifest: Manifest
    run_folder: str
    people: list[str]
    encoder: EncoderState | None
    tracking_run: str
    tracking_uri: str
    owner: str
    judges: EvaluatorPaths | None = None
