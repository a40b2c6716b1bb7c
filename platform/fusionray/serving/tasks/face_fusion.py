"""The served task of face fusion: single pictures, batches, jobs and stored identities."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from fusionray.environment import WEBHOOK_SECRET_VARIABLE
from fusionray.errors import ImageRejected, Overloaded, ServiceFailed
from fusionray.serving.auth.callers import Caller
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.jobs.documents import describe_job
from fusionray.serving.http.jobs.events import add_event_route
from fusionray.serving.http.jobs.films import add_film_routes
from fusionray.serving.http.jobs.items import add_item_routes
from fusionray.serving.http.jobs.routes import add_job_routes
from fusionray.serving.http.routes_batches import add_batch_route
from fusionray.serving.http.routes_faces import add_face_route
from fusionray.serving.http.routes_fuse import add_fuse_route
from fusionray.serving.http.routes_identities import add_identity_routes
from fusionray.serving.identities.store import open_store
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.items import ItemOutcome, JobInputs, JobItem
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.jobs.uris import UriReader
from fusionray.serving.jobs.webhooks import WebhookSender
from fusionray.serving.jobs.worker import JobWorker
from fusionray.serving.pipeline.face_stage import FaceStage
from fusionray.serving.pipeline.fusion_service import FuseRequest, FusionService
from fusionray.serving.pipeline.generator_stage import GeneratorService
from fusionray.serving.pipeline.picture_codec import describe_fault
from fusionray.serving.pipeline.picture_service import PictureService, RemotePictures
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.schema import FuseOptions, ModelCard, ModelVersion, Problem, ReferenceFace
from fusionray.serving.videos.audit import FilmRequest
from fusionray.serving.videos.task import FilmAnswer
from fusionray.serving.videos.worker import VideoWorker

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
        *,
        webhook_secret: bytes | None = None,
    ) -> None:
        self.config = config
        self.requests = requests
        self.pictures: PictureService = RemotePictures(faces, config) if faces else FaceStage(config, generators)
        # A face stage in this replica has a store already: decrypted faces lie in memory once.
        pictures = self.pictures
        self.identities = pictures.identities if isinstance(pictures, FaceStage) else open_store(config.identities)
        self.service = FusionService(requests, self.pictures, self.identities)
        self.uris = UriReader(config.jobs.allowed_uris, config.limits.max_body_bytes)
        self.jobs, self.job_worker = self.open_jobs()
        self.video_worker = VideoWorker(self.jobs, config, self.choose_for_film, self.close_film)
        self.webhooks = self.open_webhooks(webhook_secret)

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version, warm it up, and describe what it runs on."""
        return await self.pictures.prepare(version)

    def add_routes(self, api: FastAPI) -> None:
        """Add the routes that find faces, fuse pictures and store identities."""
        add_fuse_route(api, self)
        add_face_route(api, self)
        add_identity_routes(api, self)
        add_batch_route(api, self)
        add_job_routes(api, self)
        add_item_routes(api, self)
        add_event_route(api, self)
        add_film_routes(api, self)

    def open_jobs(self) -> tuple[JobStore, JobWorker]:
        """Open the store of jobs, and make the worker."""
        settings = self.config.jobs
        store = JobStore(
            Path(settings.folder),
            settings.ttl_seconds,
            settings.max_jobs,
            max_open_jobs=settings.max_open_jobs,
            max_bytes=settings.max_bytes,
            key_file=Path(settings.key_file) if settings.key_file else None,
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

    def open_webhooks(self, encrypted_secret: bytes | None) -> WebhookSender | None:
        """Make the sender of webhooks; None if no host is allowed.

        Raises: NotDecrypted if this replica has another key than the process that started the service.
        """
        if encrypted_secret is None:
            return None
        secret = self.jobs.key.cipher.decrypt(encrypted_secret, WEBHOOK_SECRET_VARIABLE.encode())
        settings = self.config.jobs.webhooks
        return WebhookSender(self.jobs.list_ended, self.describe_end, self.jobs.key, settings, secret)

    def describe_end(self, folder: JobFolder) -> dict[str, Any]:
        """Build what a webhook tells of an ended job."""
        document: dict[str, Any] = describe_job(self.jobs.describe(folder))
        del document["webhook"]
        return document

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to process jobs."""
        self.loop = loop
        self.job_worker.start()
        self.video_worker.start()
        if self.webhooks is not None:
            self.webhooks.start()

    def check(self) -> None:
        """Check that jobs are still processed.

        Raises: RuntimeError.
        """
        if not (self.job_worker.is_alive and self.video_worker.is_alive):
            raise RuntimeError("the threads that process jobs have ended")
        if self.webhooks is not None and not self.webhooks.is_alive:
            raise RuntimeError("the threads that send webhooks have ended")

    def sweep(self) -> None:
        """Remove expired identities."""
        self.identities.sweep()

    def drain(self) -> None:
        """Let other replicas take the jobs at once."""
        self.job_worker.drain()
        self.video_worker.drain()
        if self.webhooks is not None:
            self.webhooks.drain()

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
        try:
            source, target = self.read_pictures(item)
        except ImageRejected as error:
            return ItemOutcome(problem=describe_fault(error, str(error).partition(" ")[0]).document())
        caller = Caller(item.owner, request=f"{item.job}-{item.index}")
        options = FuseOptions(**{**item.options["fuse"], "consent": item.inputs.consent})
        request = FuseRequest(caller, (source,), target, options, item.options["model"], find_reference(item.inputs))
        for _ in range(MAX_BUSY_WAITS):
            outcome = asyncio.run_coroutine_threadsafe(self.make_outcome(request), self.loop).result()
            if outcome.problem is None or outcome.problem["status"] != 503:
                return outcome
            if outcome.problem["reason"] == "model_lost":
                raise ServiceFailed(f"job {item.job}, item {item.index}: {outcome.problem['detail']}")
            if self.job_worker.stop.wait(BUSY_WAIT_SECONDS):
                break
        raise Overloaded("the service stayed busy")

    def choose_for_film(self, model: str) -> ModelVersion | Problem:
        """Choose the version that makes a film: never a canary, so that an interrupted film goes on with the same."""
        served = self.requests.registry.served.get(model)
        if served is None:
            return Problem(404, "unknown_model", "No such model", f"no model '{model}' is served here any more")
        return served.main

    def close_film(self, folder: JobFolder, result: FilmAnswer) -> Future[bool]:
        """Let the event loop count and log the end of a film."""
        return asyncio.run_coroutine_threadsafe(self.log_film(folder, result), self.loop)

    async def log_film(self, folder: JobFolder, result: FilmAnswer) -> bool:
        """Count and log the end of a film; return whether it may count as the end of the job."""
        request = FilmRequest(Caller(folder.record.owner, request=f"{folder.record.job}-1"), folder.record.created_at)
        reply = result.made or result.problem
        assert reply is not None
        return await self.requests.close(request, reply, folder.record.options["model"]) is reply

    def read_pictures(self, item: JobItem) -> tuple[bytes | str, bytes]:
        """Read the source (or its handle) and the target of an item; URIs only now.

        Raises: ImageRejected for a URI that cannot be read; OSError.
        """
        target = self.uris.read(item.target_uri, "target") if item.target_uri is not None else item.target
        assert target is not None
        inputs = item.inputs
        if inputs.source_uri is not None:
            return self.uris.read(inputs.source_uri, "source"), target
        source = inputs.source if inputs.source is not None else inputs.identity
        assert source is not None
        return source, target


def find_reference(inputs: JobInputs) -> ReferenceFace | None:
    """Return the reference face of a job, if it has one."""
    if inputs.reference is None or inputs.reference_similarity is None:
        return None
    return ReferenceFace(inputs.reference, inputs.reference_similarity)
