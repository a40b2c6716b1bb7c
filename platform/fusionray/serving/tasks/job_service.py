"""The jobs of a replica, of whatever task: their store, those who work on them, and who is told of their end."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from fusionray.environment import WEBHOOK_SECRET_VARIABLE
from fusionray.errors import ImageRejected, Overloaded, ServiceFailed
from fusionray.serving.auth.callers import Caller
from fusionray.serving.config import ServeConfig
from fusionray.serving.jobs.documents import describe_job
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.items import ItemOutcome, JobItem
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.jobs.uris import UriReader
from fusionray.serving.jobs.webhooks import WebhookSender
from fusionray.serving.jobs.worker import JobWorker
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.pipeline.picture_codec import describe_fault
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.schema import Problem
from fusionray.serving.videos.audit import FilmRequest
from fusionray.serving.videos.task import FilmAnswer
from fusionray.serving.videos.worker import VideoWorker

# If the service is busy, an item of a job waits so long, so often, before it counts as an attempt.
BUSY_WAIT_SECONDS, MAX_BUSY_WAITS = 1.0, 60
# Films of requests that are looked at at once; others wait.
FILM_CHECKS = 2
# Refusals with 503 that waiting does not end: they count as attempts.
NOT_BUSY = frozenset({"model_lost", "signing_failed", "audit_failed"})


class JobTask(Protocol):
    """A task whose pictures can be made by jobs."""

    def read_item(self, item: JobItem, caller: Caller) -> Any:
        """Build the request for one picture of a job, on the calling thread.

        Raises: ImageRejected for a URI that cannot be read; OSError.
        """
        ...

    async def make_outcome(self, request: Any) -> ItemOutcome:
        """Make one picture of a batch or job."""
        ...


class JobService:
    """Take jobs, have them worked on, and tell their end.

    Tasks whose jobs are accepted are added to `tasks`. `webhook_secret` is the secret that signs webhooks, encrypted
    under the key of the service.
    """

    def __init__(self, config: ServeConfig, requests: RequestService, webhook_secret: bytes | None = None) -> None:
        self.config = config
        self.requests = requests
        self.tasks: dict[str, JobTask] = {}
        self.uris = UriReader(config.jobs.allowed_uris, config.limits.max_body_bytes)
        settings = config.jobs
        self.store = JobStore(
            Path(settings.folder),
            settings.ttl_seconds,
            settings.max_jobs,
            max_open_jobs=settings.max_open_jobs,
            max_bytes=settings.max_bytes,
            key_file=Path(settings.key_file) if settings.key_file else None,
        )
        self.worker = JobWorker(
            self.store,
            self.work_on,
            parallel_jobs=settings.parallel_jobs,
            parallel_items=settings.parallel_items,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            max_attempts=settings.max_attempts,
        )
        self.video_worker = VideoWorker(self.store, config, self.choose_for_film, self.close_film)
        self.webhooks = self.open_webhooks(webhook_secret)
        # A film on which FFmpeg hangs takes a minute: none of the threads in which answers are written down.
        self.film_checks = ThreadPoolExecutor(FILM_CHECKS, "film-check")

    def open_webhooks(self, encrypted_secret: bytes | None) -> WebhookSender | None:
        """Make the sender of webhooks; None if no host is allowed.

        Raises: NotDecrypted if this replica has another key than the process that started the service.
        """
        if encrypted_secret is None:
            return None
        secret = self.store.key.cipher.decrypt(encrypted_secret, WEBHOOK_SECRET_VARIABLE.encode())
        settings = self.config.jobs.webhooks
        return WebhookSender(self.store.list_ended, self.describe_end, self.store.key, settings, secret)

    def describe_end(self, folder: JobFolder) -> dict[str, Any]:
        """Build what a webhook tells of an ended job."""
        document: dict[str, Any] = describe_job(self.store.describe(folder))
        del document["webhook"]
        return document

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to process jobs."""
        self.loop = loop
        self.worker.start()
        self.video_worker.start()
        if self.webhooks is not None:
            self.webhooks.start()

    def check(self) -> None:
        """Check that jobs are still processed.

        Raises: RuntimeError.
        """
        if not (self.worker.is_alive and self.video_worker.is_alive):
            raise RuntimeError("the threads that process jobs have ended")
        if self.webhooks is not None and not self.webhooks.is_alive:
            raise RuntimeError("the threads that send webhooks have ended")

    def drain(self) -> None:
        """Let other replicas take the jobs at once."""
        self.film_checks.shutdown(wait=False, cancel_futures=True)
        self.worker.drain()
        self.video_worker.drain()
        if self.webhooks is not None:
            self.webhooks.drain()

    def work_on(self, item: JobItem) -> ItemOutcome:
        """Make one picture of a job, on the calling thread; wait while the service is busy.

        Raises: Overloaded if it stays busy; ServiceFailed if a replica was lost meanwhile, perhaps by this picture:
            that counts as an attempt.
        """
        task = self.tasks.get(item.options["task"])
        if task is None:
            detail = f"no model of the task {item.options['task']} is served here any more"
            return ItemOutcome(problem=Problem(404, "unknown_model", "No such model", detail).document())
        try:
            request = task.read_item(item, Caller(item.owner, request=f"{item.job}-{item.index}"))
        except ImageRejected as error:
            return ItemOutcome(problem=describe_fault(error, str(error).partition(" ")[0]).document())
        for _ in range(MAX_BUSY_WAITS):
            outcome = asyncio.run_coroutine_threadsafe(task.make_outcome(request), self.loop).result()
            if outcome.problem is None or outcome.problem["status"] != 503:
                return outcome
            if outcome.problem["reason"] in NOT_BUSY:
                raise ServiceFailed(f"job {item.job}, item {item.index}: {outcome.problem['detail']}")
            if self.worker.stop.wait(BUSY_WAIT_SECONDS):
                break
        raise Overloaded("the service stayed busy")

    def read_target(self, item: JobItem, role: str) -> bytes:
        """Read the target of an item; `role` is what the task calls it.

        Raises: ImageRejected for a URI that cannot be read; OSError.
        """
        target = self.uris.read(item.target_uri, role) if item.target_uri is not None else item.target
        assert target is not None
        return target

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
