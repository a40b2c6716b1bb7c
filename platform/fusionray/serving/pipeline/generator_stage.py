"""The generator stage: it fuses the crops of many requests in common batches.

It also runs the models of other tasks: each call makes a picture of named pictures, in common batches if the task's
runner allows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import Image
from fusionray.runtime.batch_queue import BatchQueue
from fusionray.runtime.batching import CropBatcher
from fusionray.runtime.crop_fuser import FusedCrops
from fusionray.runtime.pixels import FloatArray
from fusionray.serving.config import ServeConfig
from fusionray.serving.model_cards import ModelCard, ModelVersion, PictureModelCard
from fusionray.serving.pipeline.core_share import share_cores
from fusionray.serving.pipeline.loaded_models import LoadedGenerator, LoadedRunner
from fusionray.serving.pipeline.model_cache import Announce, DeploymentClient, ModelCache


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


class GeneratorStage:
    """Hold generators in memory, fuse crops with them, and run the models of other tasks.

    `announce`: see `ModelCache`.
    """

    def __init__(self, config: ServeConfig, announce: Announce | None = None) -> None:
        self.config = config
        self.cores = share_cores()
        # Those that are loaded, and those that finish their work after they were unloaded.
        self.batchers: WeakSet[BatchQueue[Any, Any]] = WeakSet()
        capacity = config.models_per_replica
        self.models: ModelCache[LoadedGenerator] = ModelCache(self.load, capacity, LoadedGenerator.close, announce)
        self.runners: ModelCache[LoadedRunner] = ModelCache(self.load_runner, capacity, LoadedRunner.close, announce)

    def load(self, version: ModelVersion) -> LoadedGenerator:
        """Load a generator, on the calling thread."""
        loaded = LoadedGenerator(version, self.config, self.cores)
        self.batchers.add(loaded.batcher)
        return loaded

    def load_runner(self, version: ModelVersion) -> LoadedRunner:
        """Load the models of another task, on the calling thread."""
        loaded = LoadedRunner(version, self.config, self.cores)
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
