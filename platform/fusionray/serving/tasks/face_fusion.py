"""Face fusion as it is served: single pictures, batches, jobs, and identities that are kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from fusionray.errors import Overloaded
from fusionray.serving.auth.callers import Caller
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.routes_batches import add_many_routes
from fusionray.serving.http.routes_fuse import add_fuse_route
from fusionray.serving.http.routes_identities import add_identity_routes
from fusionray.serving.http.static_page import page_routes
from fusionray.serving.identities.store import open_store
from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.jobs.worker import JobWorker
from fusionray.serving.pipeline.face_stage import FaceStage, PictureService, RemotePictures
from fusionray.serving.pipeline.fusion_service import FuseRequest, FusionService
from fusionray.serving.pipeline.generator_stage import GeneratorService
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.schema import FuseOptions, ModelCard, ModelVersion, Problem

# An item of a job that meets a full house waits so long, so often, before it counts as tried.
PATIENCE_SECONDS, MOST_WAITS = 1.0, 60


class FaceFusion:
    """Fuse faces. `faces` are replicas that work on pictures, if they have their own; `generators` fuses the crops."""

    def __init__(
        self,
        config: ServeConfig,
        requests: RequestService,
        generators: GeneratorService,
        faces: DeploymentHandle | None = None,
    ) -> None:
        self.config = config
        self.requests = requests
        self.pictures: PictureService = RemotePictures(faces) if faces is not None else FaceStage(config, generators)
        self.service = FusionService(requests, self.pictures)
        self.vault = open_store(config.identities)
        self.jobs, self.runner = self.open_jobs()

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version, warm it up, and tell what it runs on."""
        return await self.pictures.prepare(version)

    def add_routes(self, api: FastAPI) -> None:
        """Add the routes that fuse and keep faces, and the page for people."""
        add_fuse_route(api, self)
        add_identity_routes(api, self)
        add_many_routes(api, self)
        api.router.routes.extend(page_routes())

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

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to work on jobs."""
        self.loop = loop
        self.runner.start()

    def check(self) -> None:
        """Find out whether jobs are still worked on.

        Raises: RuntimeError.
        """
        if not self.runner.is_alive:
            raise RuntimeError("the threads that work on jobs have ended")

    def sweep(self) -> None:
        """Clear away expired identities."""
        self.vault.sweep()

    def drain(self) -> None:
        """Give jobs to other replicas at once."""
        self.runner.drain()

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
