"""The replica that takes requests: it puts the parts together, follows the models, and works on jobs between."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from fusionray.errors import FusionRayError, Overloaded
from fusionray.serving.auth.api_keys import ApiKeyStore
from fusionray.serving.auth.callers import ApiKeyMiddleware, Caller
from fusionray.serving.auth.rate_limits import RateLimitClient
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.api import build_api
from fusionray.serving.http.middleware import (
    AsgiApp,
    BodyLimitMiddleware,
    ConcurrencyLimitMiddleware,
    DisconnectMiddleware,
    check_exposure,
)
from fusionray.serving.identities.store import open_store
from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.jobs.worker import JobWorker
from fusionray.serving.pipeline.face_stage import FaceStage, PictureService, RemotePictures
from fusionray.serving.pipeline.generator_stage import CropService, GeneratorStage, RemoteFuser
from fusionray.serving.pipeline.model_registry import ModelRegistry
from fusionray.serving.pipeline.service import FuseRequest, FusionService
from fusionray.serving.schema import FuseOptions, ModelCard, ModelVersion, Problem, unavailable

logger = logging.getLogger("ray.serve")

HEALTH_TIMEOUT_SECONDS = 2.0
# Expired identities answer to nobody at once; their files may lie a little longer.
SWEEP_SECONDS = 60.0
# An item of a job that meets a full house waits so long, so often, before it counts as tried.
PATIENCE_SECONDS, MOST_WAITS = 1.0, 60


class Ingress:
    """Take requests. Ray Serve calls `__serve_build_asgi_app__` once per replica, and asks for its health.

    `fuser` and `faces` are the parts that run in replicas of their own; what is missing runs in here. `quotas` is the
    ledger that all replicas share.
    """

    def __init__(
        self,
        config: ServeConfig,
        key_digest: bytes | None,
        faces: DeploymentHandle | None = None,
        fuser: DeploymentHandle | None = None,
        quotas: DeploymentHandle | None = None,
    ) -> None:
        self.ring = ApiKeyStore(Path(config.keys.file) if config.keys.file else None, key_digest)
        check_exposure(find_address()[0], not self.ring.is_empty)
        self.config = config
        self.book = ModelRegistry(config)
        self.pictures = build_pictures(config, faces, fuser)
        self.vault = open_store(config.identities)
        self.service = FusionService(
            config, self.book, self.pictures, RateLimitClient(quotas.grant.remote) if quotas is not None else None
        )
        self.jobs, self.runner = self.open_jobs()
        self.cards: dict[str, ModelCard] = {}
        self.watch: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> AsgiApp:
        limits = self.config.limits
        guarded = BodyLimitMiddleware(build_api(self), limits.max_body_bytes, limits.body_timeout_seconds)
        return ApiKeyMiddleware(
            ConcurrencyLimitMiddleware(DisconnectMiddleware(guarded), limits.max_requests, self.service.measures),
            self.ring,
        )

    def open_jobs(self) -> tuple[JobStore, JobWorker]:
        """Open the folder of the jobs, and prepare to work on them."""
        wished = self.config.jobs
        store = JobStore(
            Path(wished.folder),
            wished.ttl_seconds,
            wished.max_jobs,
            max_open_jobs=wished.max_open_jobs,
            max_bytes=wished.max_bytes,
        )
        runner = JobWorker(
            store,
            self.work_on,
            parallel_jobs=wished.parallel_jobs,
            parallel_items=wished.parallel_items,
            lease_seconds=wished.lease_seconds,
            poll_seconds=wished.poll_seconds,
            max_attempts=wished.max_attempts,
        )
        return store, runner

    async def check_health(self) -> None:
        """Load what is to be served; a replica takes requests only after that. Ray Serve asks again and again.

        Raises: BundleInvalid, ProviderUnavailable; the replica counts as sick then.
        """
        if self.watch is None:
            for version in self.book.versions():
                await self.prepare(version)
            self.loop = asyncio.get_running_loop()
            self.watch = asyncio.create_task(self.follow())
            self.runner.start()
        elif not self.runner.is_alive:
            raise RuntimeError("the threads that work on jobs have ended")

    def __del__(self) -> None:
        # Ray Serve calls this when it ends a replica: jobs go to others at once.
        if hasattr(self, "runner"):
            self.runner.drain()

    async def prepare(self, version: ModelVersion) -> None:
        card = await self.pictures.prepare(version)
        self.cards[version.id] = replace(card, default=version.name == self.book.default, share=version.share)

    async def follow(self) -> None:
        """Notice aliases that moved and bundles that were replaced; they answer once they are loaded and warm.

        Expired identities are cleared away on the way.
        """
        loop = asyncio.get_running_loop()
        next_sweep = loop.time()
        while True:
            await asyncio.sleep(self.config.alias_poll_seconds)
            try:
                changed = await loop.run_in_executor(None, self.book.look)
                for found in changed.values():
                    for version in (found.main, found.canary):
                        if version is not None:
                            await self.prepare(version)
                if loop.time() >= next_sweep:
                    await loop.run_in_executor(None, self.vault.sweep)
                    next_sweep = loop.time() + SWEEP_SECONDS
            except (FusionRayError, OSError, RayActorError) as error:
                # What answers now goes on answering.
                logger.warning("models: %s; the versions in use stay", error)
                continue
            for found in changed.values():
                logger.warning("models: %s answers from now on", found.main.id)
            self.book.adopt(changed)

    async def make_outcome(self, wish: FuseRequest) -> ItemOutcome:
        """Make one picture of many."""
        reply = await self.service.fuse(wish)
        if isinstance(reply, Problem):
            return ItemOutcome(problem=json.loads(reply.body()))
        boxes = [[round(value) for value in box] for box in reply.boxes]
        extension = reply.media_type.removeprefix("image/").replace("jpeg", "jpg")
        return ItemOutcome(reply.data, extension, {"boxes": boxes, "model": reply.model, "bundle": reply.bundle})

    def work_on(self, item: JobItem) -> ItemOutcome:
        """Make one picture of a job, on the calling thread; a house that is full now is waited for.

        Raises: Overloaded if it stays full.
        """
        source = item.source if item.source is not None else str(item.identity)
        caller = Caller(item.owner, request=f"{item.job}-{item.index}")
        wish = FuseRequest(caller, source, item.target, FuseOptions(**item.options["fuse"]), item.options["model"])
        for _ in range(MOST_WAITS):
            outcome = asyncio.run_coroutine_threadsafe(self.make_outcome(wish), self.loop).result()
            if outcome.problem is None or outcome.problem["status"] != 503:
                return outcome
            if self.runner.stop.wait(PATIENCE_SECONDS):
                break
        raise Overloaded("the service stayed full")

    def list_models(self) -> list[ModelCard]:
        """Describe what is served, the default first, each with its canary."""
        cards = []
        for found in self.book.found.values():
            card = self.cards.get(found.main.id)
            if card is not None:
                canary = self.cards.get(found.canary.id) if found.canary is not None else None
                cards.append(replace(card, canary=canary))
        return cards

    async def find_model(self) -> Problem | None:
        """Ask the part that holds the default model for it: a problem unless it is loaded and answers."""
        version = self.book.choose(None)
        try:
            await asyncio.wait_for(self.pictures.prepare(version), HEALTH_TIMEOUT_SECONDS)
        except (TimeoutError, RayActorError, DeploymentUnavailableError, BackPressureError, FusionRayError):
            return unavailable("not_ready", "the model is not loaded yet, or does not answer")
        return None


def build_pictures(
    config: ServeConfig, faces: DeploymentHandle | None, fuser: DeploymentHandle | None
) -> PictureService:
    """Put the parts together: those apart behind their handles, the others in this replica."""
    if faces is not None:
        return RemotePictures(faces)
    crops: CropService = RemoteFuser(fuser) if fuser is not None else GeneratorStage(config)
    return FaceStage(config, crops)


class FaceReplica(FaceStage):
    """The faces stage as a deployment of its own."""

    def __init__(self, config: ServeConfig, fuser: DeploymentHandle | None = None) -> None:
        super().__init__(config, RemoteFuser(fuser) if fuser is not None else GeneratorStage(config))


def find_address() -> tuple[str, int]:
    """Ask Ray Serve on which host and port it listens: its own settings, not the application's, decide that."""
    from ray.serve.context import _get_global_client

    options = _get_global_client().http_config
    return str(options.host), int(options.port)
