"""The served task of face fusion: single pictures, batches, jobs and stored identities."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from fusionray.errors import Overloaded, ServiceFailed
from fusionray.serving.auth.callers import Caller
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.routes_batches import add_many_routes
from fusionray.serving.http.routes_faces import add_face_route
from fusionray.serving.http.routes_fuse import add_fuse_route
from fusionray.serving.http.routes_identities import add_identity_routes
from fusionray.serving.http.static_page import page_routes
from fusionray.serving.identities.store import open_store
from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.jobs.worker import JobWorker
from fusionray.serving.pipeline.face_stage import FaceStage
from fusionray.serving.pipeline.fusion_service import FuseRequest, FusionService
from fusionray.serving.pipeline.generator_stage import GeneratorService
from fusionray.serving.pipeline.picture_service import PictureService, RemotePictures
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.schema import FuseOptions, ModelCard, ModelVersion, Problem

# If the service is busy, an item of a job waits so long, so often, before it counts as an attempt.
BUSY_WAIT_SECONDS, MAX_BUSY_WAITS = 1.0, 60


class FaceFusion:
    """Fuse faces. `faces` is the face stage if it has a deployment of its own; `generators` fuses the crops."""

    def __init__(
        self,
        config: ServeConfig,
        requests: RequestService,
        generators: GeneratorService,
        faces: DeploymentHandle | None = None,
    ) -> None:
        self.config = config
        self.requests = requests
        self.pictures: PictureService = RemotePictures(faces, config) if faces else FaceStage(config, generators)
        # A face stage in this replica has a store already: decrypted faces lie in memory once.
        pictures = self.pictures
        self.identities = pictures.identities if isinstance(pictures, FaceStage) else open_store(config.identities)
        self.service = FusionService(requests, self.pictures, self.identities)
        self.jobs, self.job_worker = self.open_jobs()

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version, warm it up, and describe what it runs on."""
        return await self.pictures.prepare(version)

    def add_routes(self, api: FastAPI) -> None:
        """Add the routes that find faces, fuse pictures and store identities, and the web page."""
        add_fuse_route(api, self)
        add_face_route(api, self)
        add_identity_routes(api, self)
        add_many_routes(api, self)
        api.router.routes.extend(page_routes())

    def open_jobs(self) -> tuple[JobStore, JobWorker]:
        """Open the store of jobs, and make the worker."""
        settings = self.config.jobs
        store = JobStore(
            Path(settings.folder),
            settings.ttl_seconds,
            settings.max_jobs,
            max_open_jobs=settings.max_open_jobs,
            max_bytes=settings.max_bytes,
        )
        worker = JobWorker(
            store,
            self.work_on,
            parallel_jobs=settings.parallel_jobs,
            parallel_items=settings.parallel_items,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            max_attempts=settings.max_attempts,
        )
        return store, worker

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to process jobs."""
        self.loop = loop
        self.job_worker.start()

    def check(self) -> None:
        """Check that jobs are still processed.

        Raises: RuntimeError.
        """
        if not self.job_worker.is_alive:
            raise RuntimeError("the threads that process jobs have ended")

    def sweep(self) -> None:
        """Remove expired identities."""
        self.identities.sweep()

    def drain(self) -> None:
        """Let other replicas take the jobs at once."""
        self.job_worker.drain()

    async def make_outcome(self, request: FuseRequest) -> ItemOutcome:
        """Make one picture of a batch or job."""
        reply = await self.service.fuse(request)
        if isinstance(reply, Problem):
            return ItemOutcome(problem=reply.document())
        boxes = [[round(value) for value in box] for box in reply.boxes]
        extension = reply.media_type.removeprefix("image/").replace("jpeg", "jpg")
        return ItemOutcome(reply.data, extension, {"boxes": boxes, "model": reply.model, "bundle": reply.bundle})

    def work_on(self, item: JobItem) -> ItemOutcome:
        """Make one picture of a job, on the calling thread; wait while the service is busy.

        Raises: Overloaded if it stays busy; ServiceFailed if a replica was lost meanwhile, perhaps by this picture:
            that counts as an attempt.
        """
        source = item.source if item.source is not None else str(item.identity)
        caller = Caller(item.owner, request=f"{item.job}-{item.index}")
        request = FuseRequest(caller, source, item.target, FuseOptions(**item.options["fuse"]), item.options["model"])
        for _ in range(MAX_BUSY_WAITS):
            outcome = asyncio.run_coroutine_threadsafe(self.make_outcome(request), self.loop).result()
            if outcome.problem is None or outcome.problem["status"] != 503:
                return outcome
            if outcome.problem["reason"] == "model_lost":
                raise ServiceFailed(f"job {item.job}, item {item.index}: {outcome.problem['detail']}")
            if self.job_worker.stop.wait(BUSY_WAIT_SECONDS):
                break
        raise Overloaded("the service stayed busy")
