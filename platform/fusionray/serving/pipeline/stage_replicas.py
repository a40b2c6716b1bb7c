"""The face stage and the generator stage as deployments of their own."""

from __future__ import annotations

import asyncio

from ray.serve.handle import DeploymentHandle

from fusionray.bundle.description import FACE_FUSION
from fusionray.serving.config import ServeConfig
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.pipeline.face_stage import FaceStage
from fusionray.serving.pipeline.generator_stage import GeneratorStage, RemoteFuser
from fusionray.serving.pipeline.model_cache import build_announcer
from fusionray.serving.pipeline.model_registry import ModelRegistry
from fusionray.serving.replicas import enter_replica


class FaceReplica(FaceStage):
    """The face stage as a deployment of its own."""

    def __init__(self, config: ServeConfig, fuser: DeploymentHandle | None = None) -> None:
        config = enter_replica(config)
        fusers = RemoteFuser(fuser, config) if fuser is not None else GeneratorStage(config)
        super().__init__(config, fusers, announce=build_announcer(config))
        self.is_loaded = False

    async def check_health(self) -> None:
        """Load the models; a replica takes requests only after that. Later calls drop old faces from its memory.

        Raises: BundleInvalid, ProviderUnavailable; RuntimeError if a thread of the generator has ended.
        """
        if not self.is_loaded:
            for version in find_preloaded(self.config):
                if version.task == FACE_FUSION:
                    await self.models.get(version)
            self.is_loaded = True
        self.fuser.check()
        await asyncio.get_running_loop().run_in_executor(None, self.identities.memory.sweep)


class GeneratorReplica(GeneratorStage):
    """The generator stage as a deployment of its own."""

    def __init__(self, config: ServeConfig) -> None:
        config = enter_replica(config)
        super().__init__(config, build_announcer(config))
        self.is_loaded = False

    async def check_health(self) -> None:
        """Load the models; a replica takes requests only after that.

        Raises: BundleInvalid, ProviderUnavailable; RuntimeError if a thread of a generator has ended.
        """
        if not self.is_loaded:
            for version in find_preloaded(self.config):
                await (self.models if version.task == FACE_FUSION else self.runners).get(version)
            self.is_loaded = True
        self.check()


def find_preloaded(config: ServeConfig) -> list[ModelVersion]:
    """Find the versions that a new replica loads before it takes requests: all, if it can hold all.

    Raises: BundleInvalid.
    """
    return ModelRegistry(config).versions() if config.replicas_hold_all_models else []
