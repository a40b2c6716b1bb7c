"""The generator stage: it fuses the crops of many requests in common batches.

It also runs the models of other tasks: each call makes a picture of named pictures, in common batches if the task's
runner allows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.description import BundleDescription
from fusionray.faces.face import Image
from fusionray.runtime.batch_queue import BatchQueue
from fusionray.runtime.batching import CropBatcher, PictureBatcher
from fusionray.runtime.crop_fuser import MAX_BATCH, CropFuser, FusedCrops
from fusionray.runtime.engines.engine import EngineReport
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.tasks import BatchRunner, open_runner
from fusionray.serving.config import ServeConfig
from fusionray.serving.config_sections.stages import GeneratorStageConfig
from fusionray.serving.metrics import BatchMetrics
from fusionray.serving.model_cards import ModelCard, ModelVersion, PictureModelCard
from fusionray.serving.pipeline.core_share import share_cores
from fusionray.serving.pipeline.model_cache import DeploymentClient, ModelCache, open_bundle

# More streams leave too few threads to a face while some of the streams are idle.
MAX_STREAMS = 4


class GeneratorService(Protocol):
    """Runs generators, in this replica or in another one."""

    def check(self) -> None:
        """Check that what runs in this replica still runs; raises RuntimeError."""
        ...

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version, warm it up, and describe what it runs on."""
        ...

    async def find_here(self, version: ModelVersion) -> CropBatcher | None:
        """Return the batcher of a version that runs in this replica, loaded and warm; None if it runs in another."""
        ...

    async def fuse(
        self, version: ModelVersion, sources: FloatArray, crops: NDArray[np.uint8]
    ) -> tuple[FusedCrops, float]:
        """Fuse crops uint8 [N,S,S,3], each with its source; return them and the seconds that they waited."""
        ...

    async def prepare_pictures(self, version: ModelVersion) -> PictureModelCard:
        """Load a version of another task, warm it up, and describe what it runs on."""
        ...

    async def run(
        self, version: ModelVersion, pictures: dict[str, Image], settings: Mapping[str, Any]
    ) -> tuple[Image, float]:
        """Make a picture of the named pictures, of any size; return it and the seconds that they waited.

        `settings` are those of the runner for this picture.
        """
        ...


@dataclass(frozen=True)
class ExecutionStreams:
    """Batches computed in parallel: their number, their size in faces, and `threads` of each (None: the model's).

    `is_shared`: there are fewer while other replicas of the node use its cores.
    """

    count: int
    max_batch: int
    threads: int | None = None
    is_shared: bool = False


def plan_streams(settings: GeneratorStageConfig, report: EngineReport) -> ExecutionStreams:
    """Plan for the hardware: a GPU gains from large batches, a CPU from single faces in parallel.

    Measured with fast-128 on two cores: one face per thread gives 1.2 times the throughput of one face on both.
    """
    if report.provider != CPU:
        return ExecutionStreams(settings.num_streams or 1, settings.max_batch or MAX_BATCH)
    count = settings.num_streams or min(MAX_STREAMS, report.threads)
    threads = max(1, report.threads // count)
    narrow = threads if threads < report.threads else None
    return ExecutionStreams(count, settings.max_batch or 1, narrow, is_shared=settings.num_streams is None)


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

    def __del__(self) -> None:
        # Ray Serve calls this when it unloads the model; the batcher finishes what waits first.
        if hasattr(self, "batcher"):
            self.batcher.close()


class LoadedGenerator(LoadedModel):
    """A loaded generator and its batcher."""

    batcher: CropBatcher

    def __init__(
        self, version: ModelVersion, config: ServeConfig, most_running: Callable[[], int] | None = None
    ) -> None:
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
            most_running=most_running if streams.is_shared else None,
        )
        self.card = ModelCard(
            template=bundle.description.template, **describe_model(version, bundle.description, fuser.report)
        )


class LoadedRunner(LoadedModel):
    """The loaded models of a bundle of another task, and their batcher."""

    batcher: PictureBatcher

    def __init__(
        self, version: ModelVersion, config: ServeConfig, most_running: Callable[[], int] | None = None
    ) -> None:
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
            most_running=most_running if streams.is_shared else None,
        )
        self.card = PictureModelCard(
            task=bundle.description.task,
            inputs=runner.inputs,
            **describe_model(version, bundle.description, runner.report),
        )


class GeneratorStage:
    """Hold generators in memory, fuse crops with them, and run the models of other tasks."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        cores = share_cores()
        # How many batches may run at the same time just now, on CPUs.
        self.most_running = None if cores is None else cores.count_cores
        # Those that are loaded, and those that finish their work after they were unloaded.
        self.batchers: WeakSet[BatchQueue[Any, Any]] = WeakSet()
        self.models = ModelCache(self.load, config.models_per_replica)
        self.runners = ModelCache(self.load_runner, config.models_per_replica)

    def load(self, version: ModelVersion) -> LoadedGenerator:
        """Load a generator, on the calling thread."""
        loaded = LoadedGenerator(version, self.config, self.most_running)
        self.batchers.add(loaded.batcher)
        return loaded

    def load_runner(self, version: ModelVersion) -> LoadedRunner:
        """Load the models of another task, on the calling thread."""
        loaded = LoadedRunner(version, self.config, self.most_running)
        self.batchers.add(loaded.batcher)
        return loaded

    def check(self) -> None:
        """Check that the threads of all generators run.

        Raises: RuntimeError.
        """
        for batcher in list(self.batchers):
            batcher.check()

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version, warm it up, and describe what it runs on."""
        return (await self.models.get(version)).card

    async def find_here(self, version: ModelVersion) -> CropBatcher:
        """Return the batcher of a version, loaded and warm."""
        return (await self.models.get(version)).batcher

    async def fuse(
        self, version: ModelVersion, sources: FloatArray, crops: NDArray[np.uint8]
    ) -> tuple[FusedCrops, float]:
        """Fuse crops uint8 [N,S,S,3], each with its source; return them and the seconds that they waited.

        Raises: Overloaded if too many faces wait already.
        """
        loaded = await self.models.get(version)
        while loaded.batcher.closed:
            # The model was unloaded between the two lines.
            loaded = await self.models.get(version)
        return await asyncio.wrap_future(loaded.batcher.submit(sources, crops))

    async def prepare_pictures(self, version: ModelVersion) -> PictureModelCard:
        """Load a version of another task, warm it up, and describe what it runs on."""
        return (await self.runners.get(version)).card

    async def run(
        self, version: ModelVersion, pictures: dict[str, Image], settings: Mapping[str, Any]
    ) -> tuple[Image, float]:
        """Make a picture of the named pictures; return it and the seconds that they waited.

        Raises: Overloaded if too many requests wait already; ImageRejected if the runner cannot use a picture.
        """
        loaded = await self.runners.get(version)
        while loaded.batcher.closed:
            # The model was unloaded between the two lines.
            loaded = await self.runners.get(version)
        return await asyncio.wrap_future(loaded.batcher.submit(pictures, settings))


class RemoteFuser(DeploymentClient):
    """The generator stage in a deployment of its own."""

    async def find_here(self, version: ModelVersion) -> None:
        """Nothing runs in this replica."""

    async def fuse(
        self, version: ModelVersion, sources: FloatArray, crops: NDArray[np.uint8]
    ) -> tuple[FusedCrops, float]:
        """Fuse crops in one of the replicas.

        Raises: Overloaded; RayActorError if the replica dies in the meantime.
        """
        fused: tuple[FusedCrops, float] = await self.ask(version, "fuse", version, sources, crops)
        return fused

    async def prepare_pictures(self, version: ModelVersion) -> PictureModelCard:
        """Load a version of another task in the replicas, and describe what it runs on."""
        card: PictureModelCard = await self.load(version, "prepare_pictures")
        return card

    async def run(
        self, version: ModelVersion, pictures: dict[str, Image], settings: Mapping[str, Any]
    ) -> tuple[Image, float]:
        """Make a picture in one of the replicas.

        Raises: Overloaded, ImageRejected; RayActorError if the replica dies in the meantime.
        """
        made: tuple[Image, float] = await self.ask(version, "run", version, pictures, settings)
        return made
