"""The models in a replica's memory: loaded on first use, the least recently used unloaded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from fusionray.bundle.bundle import Bundle, bundle_hash, read_bundle
from fusionray.errors import BundleInvalid
from fusionray.serving.config import ServeConfig
from fusionray.serving.model_cards import ModelCard, ModelVersion

Held = TypeVar("Held")
Announce = Callable[[str], Awaitable[object]]


class ModelCache(Generic[Held]):
    """Hold up to `capacity` models, of which one at a time is loaded; `unload` ends one that leaves. Both take threads.

    `announce` tells Ray Serve that a version is held here, where requests are routed by their model.
    """

    def __init__(
        self,
        load: Callable[[ModelVersion], Held],
        capacity: int,
        unload: Callable[[Held], None] | None = None,
        announce: Announce | None = None,
    ) -> None:
        self.load = load
        self.capacity = capacity
        self.unload = unload
        self.announce = announce
        # The least recently used one is first.
        self.held: OrderedDict[str, Held] = OrderedDict()
        self.loading = asyncio.Lock()

    async def get(self, version: ModelVersion) -> Held:
        """Return a model, loaded and warm.

        Raises: BundleInvalid, ProviderUnavailable.
        """
        if self.announce is not None:
            # Before the model is loaded, so that the next request for it comes here as well.
            await self.announce(version.id)
        if version.id not in self.held:
            async with self.loading:
                if version.id not in self.held:
                    await self.make_room()
                    self.held[version.id] = await asyncio.get_running_loop().run_in_executor(None, self.load, version)
        self.held.move_to_end(version.id)
        return self.held[version.id]

    async def make_room(self) -> None:
        """Unload the least recently used model if all places are taken."""
        if len(self.held) >= self.capacity:
            _, oldest = self.held.popitem(last=False)
            if self.unload is not None:
                await asyncio.get_running_loop().run_in_executor(None, self.unload, oldest)


def build_announcer(config: ServeConfig) -> Announce | None:
    """Build what tells Ray Serve the models of this replica; None if it holds all, and none is routed by its model.

    Ray Serve's multiplexing wakes the replica ten times a second, and takes a twentieth of its event loop's work on a
    request, so only those replicas have it that need it.
    """
    if config.replicas_hold_all_models:
        return None

    async def name(model_id: str) -> str:
        return model_id

    announce: Announce = serve.multiplexed(max_num_models_per_replica=config.models_per_replica)(name)
    return announce


class DeploymentClient:
    """Client of a part with a deployment of its own.

    If a replica can hold all models of the service, every replica does, and any of them answers: Ray Serve chooses one
    that is little used. Otherwise a request names its model, and goes to a replica that holds it.
    """

    def __init__(self, handle: DeploymentHandle, config: ServeConfig) -> None:
        self.handle = handle
        self.route_by_model = not config.replicas_hold_all_models
        self.handles: dict[str, DeploymentHandle] = {}
        self.loaded: set[str] = set()

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version in the replicas, and describe what it runs on."""
        card: ModelCard = await self.load(version, "prepare")
        return card

    async def load(self, version: ModelVersion, method: str) -> Any:
        """Let every replica load a version the first time, and one of them answer after that.

        Replicas that start later load the current versions themselves.
        """
        if not self.route_by_model and version.id not in self.loaded:
            # Without a replica there is nothing to tell, and the call below waits for one.
            with contextlib.suppress(DeploymentUnavailableError):
                answers = await self.handle.broadcast(method, version).results_async()
                self.loaded.add(version.id)
                return answers[0]
        return await self.ask(version, method, version)

    async def ask(self, version: ModelVersion, method: str, *arguments: Any) -> Any:
        """Call a method in one of the replicas; if the caller gives up, as at its timeout, the replica does, too.

        Ray Serve itself cancels nothing when the task that awaits a response is cancelled. The response is that of an
        actor: `ray.cancel` of a task that is none may end this process (docs/decisions.md).
        """
        response = getattr(self.find(version), method).remote(*arguments)
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()
            raise

    def check(self) -> None:
        """Nothing of the part runs in this replica; Ray Serve looks at its own replicas."""

    def find(self, version: ModelVersion) -> DeploymentHandle:
        """Return the handle for requests of a version."""
        if not self.route_by_model:
            return self.handle
        return self.handles.setdefault(version.id, self.handle.options(multiplexed_model_id=version.id))


def open_bundle(version: ModelVersion, tracking_uri: str | None) -> Bundle:
    """Read the bundle of a version.

    Raises: BundleInvalid if it is damaged, or was replaced since the version was found.
    """
    bundle = read_bundle(version.location, tracking_uri)
    if bundle_hash(bundle) != version.bundle:
        raise BundleInvalid(f"{version.location}: another bundle lies here now; ask again in a moment")
    return bundle
