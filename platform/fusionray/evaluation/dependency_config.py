"""The configuration from which evaluators that an evaluation trains take shards, output and workers."""

from __future__ import annotations

from fusionray.data.shards import Manifest
from fusionray.evaluation.config import EvaluateConfig
from fusionray.recipes.registry import find_family
from fusionray.training.config import DataConfig, RunConfig, TrackingConfig, TrainConfig


def build_dependency_config(config: EvaluateConfig, manifest: Manifest, uri: str) -> TrainConfig:
    """Return a configuration for `ensure_trained`; of its recipe nothing is trained.

    `uri`: the MLflow store.
    """
    return TrainConfig(
        run=RunConfig(output=config.runs or config.output),
        data=DataConfig(shards=config.data, size=manifest.size, template=manifest.template),
        recipe=find_family("identity").Config(),
        workers=config.workers,
        tracking=TrackingConfig(uri=uri, experiment=config.experiment),
    )
