"""The models in a replica's memory: loaded on first use, the least recently used unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ray import serve
from ray.serve.handle import DeploymentHandle

from fusionray.bundle.bundle import Bundle, bundle_hash, read_bundle
from fusionray.errors import BundleInvalid
from fusionray.serving.schema import ModelCard, ModelVersion

Held = TypeVar("Held")


class ModelCache(Generic[Held]):
    """Hold up to `capacity` models. Ray Serve knows which, and routes a request to a replica that holds its model."""

    def __init__(self, load: Callable[[ModelVersion], Held], capacity: int) -> None:
        self.load = load
        self.asked: dict[str, ModelVersion] = {}
        self.held = serve.multiplexed(max_num_models_per_replica=capacity)(self.build_loader())

    def build_loader(self) -> Callable[[str], Any]:
        # Ray Serve keeps its state on the function, so every cache needs a function of its own.
        async def load_version(model_id: str) -> Held:
            version = self.asked[model_id]
            return await asyncio.get_running_loop().run_in_executor(None, self.load, version)

        return load_version

    async def get(self, version: ModelVersion) -> Held:
        """Return a model, loaded and warm.

        Raises: BundleInvalid, ProviderUnavailable.
        """
        self.asked[version.id] = version
        held: Held = await self.held(version.id)
        return held


class DeploymentClient:
    """Client of a part with a deployment of its own; a request goes to a replica that holds its model."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self.handle = handle
        self.handles: dict[str, DeploymentHandle] = {}

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version in one replica, and describe what it runs on."""
        card: ModelCard = await self.find(version).prepare.remote(version)
        return card

    def find(self, version: ModelVersion) -> DeploymentHandle:
        """Return a handle that prefers replicas which hold the version."""
        return self.handles.setdefault(version.id, self.handle.options(multiplexed_model_id=version.id))


def open_bundle(version: ModelVersion, tracking_uri: str | None) -> Bundle:
    """Read the bundle of a version.

    Raises: BundleInvalid if it is damaged, or was replaced since the version was found.
    """
    bundle = read_bundle(version.location, tracking_uri)
    if bundle_hash(bundle) != version.bundle:
        raise BundleInvalid(f"{version.location}: another bundle lies here now; ask again in a moment")
    return bundle
