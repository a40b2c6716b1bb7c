"""Models in the memory of a replica: the generator of face fusion, or the runner of another task, and its batches."""

from __future__ import annotations

from typing import Any

from fusionray.bundle.description import BundleDescription
from fusionray.runtime.batch_queue import BatchQueue
from fusionray.runtime.batching import CropBatcher, PictureBatcher
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engines.engine import EngineReport
from fusionray.runtime.tasks import BatchRunner, open_runner
from fusionray.serving.config import ServeConfig
from fusionray.serving.metrics import BatchMetrics
from fusionray.serving.model_cards import ModelCard, ModelVersion, PictureModelCard
from fusionray.serving.pipeline.core_share import CoreShare
from fusionray.serving.pipeline.execution_streams import plan_streams
from fusionray.serving.pipeline.model_cache import open_bundle


def describe_model(version: ModelVersion, bundle: BundleDescription, report: EngineReport) -> dict[str, Any]:
    """Return the fields that the model cards of all tasks have."""
    return {
        "name": version.name,
        "title": bundle.name,
        "size": bundle.size,
        "bundle": version.bundle,
        "licence": bundle.licence,
        "provider": report.provider,
        "providers": report.providers,
        "threads": report.threads,
        "runtime": report.library,
        "precision": version.precision if version.precision != "fp32" else report.precision,
    }


class LoadedModel:
    """Base of a loaded model and its batcher."""

    batcher: BatchQueue[Any, Any]

    def close(self) -> None:
        """Compute what waits, then end the threads of the batcher."""
        self.batcher.close()

    def __del__(self) -> None:
        # The threads would keep a model in memory that nobody closes.
        if hasattr(self, "batcher"):
            self.close()


class LoadedGenerator(LoadedModel):
    """A loaded generator and its batcher."""

    batcher: CropBatcher

    def __init__(self, version: ModelVersion, config: ServeConfig, cores: CoreShare | None = None) -> None:
        bundle = open_bundle(version, config.tracking_uri)
        fuser = CropFuser(bundle, config.runtime, precision=version.precision)
        streams = plan_streams(config.fuser, fuser.report)
        # Before the warm-up, which runs every size of a batch on a GPU.
        fuser.max_batch = streams.max_batch
        fuser.warm_up()
        narrow_fuser = None
        if streams.threads is not None:
            narrow = config.runtime.model_copy(update={"threads": streams.threads})
            narrow_fuser = CropFuser(bundle, narrow, precision=version.precision, max_batch=streams.max_batch)
            narrow_fuser.warm_up()
        self.batcher = CropBatcher(
            fuser,
            concurrent_fuser=narrow_fuser,
            num_streams=streams.count,
            max_waiting=config.fuser.max_waiting_faces,
            observer=BatchMetrics(version.name, CropBatcher.unit),
            cores=cores if streams.is_shared else None,
        )
        self.card = ModelCard(
            template=bundle.description.template, **describe_model(version, bundle.description, fuser.report)
        )


class LoadedRunner(LoadedModel):
    """The loaded models of a bundle of another task, and their batcher."""

    batcher: PictureBatcher

    def __init__(self, version: ModelVersion, config: ServeConfig, cores: CoreShare | None = None) -> None:
        bundle = open_bundle(version, config.tracking_uri)
        runner = open_runner(bundle, config.runtime, precision=version.precision)
        runner.warm_up()
        streams = plan_streams(config.fuser, runner.report)
        narrow_runner = None
        if streams.threads is not None and isinstance(runner, BatchRunner):
            narrow = config.runtime.model_copy(update={"threads": streams.threads})
            narrow_runner = open_runner(bundle, narrow, precision=version.precision)
            narrow_runner.warm_up()
        self.batcher = PictureBatcher(
            runner,
            concurrent_runner=narrow_runner,
            max_batch=streams.max_batch,
            num_streams=streams.count,
            max_waiting=config.fuser.max_waiting_faces,
            observer=BatchMetrics(version.name, PictureBatcher.unit),
            cores=cores if streams.is_shared else None,
        )
        self.card = PictureModelCard(
            task=bundle.description.task,
            inputs=runner.inputs,
            **describe_model(version, bundle.description, runner.report),
        )
