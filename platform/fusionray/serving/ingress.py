"""The ingress replica: it answers requests with the tasks of its models, and follows the model registry."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path

from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

from fusionray.errors import FusionRayError
from fusionray.serving.addresses import check_exposure, find_address
from fusionray.serving.asgi import AsgiApp
from fusionray.serving.auth.api_keys import ApiKeyStore
from fusionray.serving.auth.rate_limit_client import RateLimitClient
from fusionray.serving.config import ServeConfig
from fusionray.serving.haproxy import NOT_REPEATABLE
from fusionray.serving.http.api import build_api
from fusionray.serving.http.middleware.api_keys import ApiKeyMiddleware
from fusionray.serving.http.middleware.limit_headers import LimitHeadersMiddleware
from fusionray.serving.http.middleware.origins import OriginMiddleware
from fusionray.serving.http.middleware.request_limits import (
    BodyLimit,
    BodyLimitMiddleware,
    ConcurrencyLimitMiddleware,
    DisconnectMiddleware,
    RequestPool,
)
from fusionray.serving.http.middleware.route_metrics import RouteMetricsMiddleware
from fusionray.serving.metrics import ExpiryMetrics, HttpMetrics
from fusionray.serving.pipeline.generator_stage import GeneratorService, GeneratorStage, RemoteFuser
from fusionray.serving.pipeline.memory_budget import MemoryBudget, choose_decoded_bytes
from fusionray.serving.pipeline.model_registry import ModelRegistry
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.replicas import enter_replica
from fusionray.serving.tasks.job_service import JobService
from fusionray.serving.tasks.parts import Parts
from fusionray.serving.tasks.registry import JOB_TASKS, open_task
from fusionray.serving.tasks.served_models import ServedModels
from fusionray.serving.tasks.served_task import ServedTask

logger = logging.getLogger("ray.serve")

# Expired identities are refused at once; their files may stay a little longer.
SWEEP_SECONDS = 60.0
# The fields of a job with a film, which has at most a source and a reference beside it.
FIELD_BYTES = 2**20
# Method and path of the requests that have limits of their own.
JOB_UPLOADS = tuple(f"POST {path}" for path in NOT_REPEATABLE)
EVENT_STREAM = "GET /v1/jobs/[^/]+/events"


class Ingress:
    """Answer requests. Ray Serve calls `__serve_build_asgi_app__` once, and `check_health` again and again.

    `fuser` and `faces` are the parts with a deployment of their own; a part that is missing runs in this replica.
    `rate_limiter` is the deployment that all replicas share, `webhook_secret` the encrypted secret of webhooks. Nothing
    is asked of the `listeners`: named here, they are deployed with the ingress.
    """

    def __init__(
        self,
        config: ServeConfig,
        key_digest: bytes | None,
        *,
        faces: DeploymentHandle | None = None,
        fuser: DeploymentHandle | None = None,
        rate_limiter: DeploymentHandle | None = None,
        listeners: DeploymentHandle | None = None,
        webhook_secret: bytes | None = None,
    ) -> None:
        del listeners
        config = enter_replica(config)
        self.keys = ApiKeyStore(Path(config.keys.file) if config.keys.file else None, key_digest)
        check_exposure(find_address()[0], not self.keys.is_empty)
        if config.keys.usage_file is None and any(key.images_per_day for _, key in self.keys.keys):
            logger.warning("keys: images_per_day starts anew with each restart; set keys.usage_file to keep it")
        self.config = config
        registry = ModelRegistry(config)
        limits = RateLimitClient(rate_limiter.lease.remote) if rate_limiter is not None else None
        self.requests = RequestService(config, registry, limits)
        self.generators: GeneratorService = RemoteFuser(fuser, config) if fuser is not None else GeneratorStage(config)
        has_jobs = any(task in JOB_TASKS for task in registry.tasks)
        self.jobs = JobService(config, self.requests, webhook_secret) if has_jobs else None
        budget = MemoryBudget(choose_decoded_bytes(config.limits))
        parts = Parts(config, self.requests, self.generators, budget, self.jobs, faces)
        tasks = {name: open_task(name, inputs, parts) for name, inputs in registry.tasks.items()}
        self.models = ServedModels(registry, tasks)
        self.expiry = ExpiryMetrics()
        self.follower: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> AsgiApp:
        limits = self.config.limits
        body = BodyLimit(limits.max_body_bytes, limits.body_timeout_seconds, MemoryBudget(limits.upload_bytes))
        # Pictures and films of the body have limits of their own (http/jobs/uploads.py).
        longest = max(limits.max_job_body_bytes, limits.max_video_bytes + 2 * limits.max_body_bytes + FIELD_BYTES)
        job_body = BodyLimit(longest, limits.job_body_timeout_seconds)
        api = build_api(self.config, self.requests, self.models, self.jobs)
        limited = BodyLimitMiddleware(api, body, dict.fromkeys(JOB_UPLOADS, job_body))
        # Uploads of jobs and streams of events last long, so they leave the places of other requests free.
        pools = (
            RequestPool(re.compile("|".join(JOB_UPLOADS)), limits.max_job_uploads, "jobs are being sent"),
            RequestPool(re.compile(EVENT_STREAM), limits.max_event_streams, "streams of events are open"),
        )
        inside = ConcurrencyLimitMiddleware(
            DisconnectMiddleware(limited), limits.max_requests, self.requests.metrics, pools
        )
        guarded = OriginMiddleware(
            ApiKeyMiddleware(LimitHeadersMiddleware(inside, self.requests), self.keys),
            self.config.access,
            has_keys=not self.keys.is_empty,
        )
        return RouteMetricsMiddleware(guarded, HttpMetrics())

    async def check_health(self) -> None:
        """Load the models; a replica takes requests only after that. Later calls look whether its threads still run.

        Raises: BundleInvalid, ProviderUnavailable, RuntimeError; the replica then counts as unhealthy.
        """
        if self.follower is None:
            await self.models.load()
            self.follower = asyncio.create_task(self.follow())
            for work in self.background():
                work.start(asyncio.get_running_loop())
        else:
            if self.follower.done():
                raise RuntimeError("the task that follows the models has ended")
            for work in self.background():
                work.check()
            self.generators.check()

    def __del__(self) -> None:
        # Ray Serve calls this when it stops a replica; other replicas take its unfinished work at once.
        for work in self.background():
            work.drain()

    def background(self) -> list[ServedTask | JobService]:
        """List what works in the background: the tasks, and the jobs if a task has some."""
        # A replica that could not be built is stopped as well.
        jobs, models = getattr(self, "jobs", None), getattr(self, "models", None)
        return [*([] if jobs is None else [jobs]), *([] if models is None else models.tasks.values())]

    async def follow(self) -> None:
        """Look for moved aliases and replaced bundles; a new version answers once it is loaded and warm.

        The loop also removes what has expired.
        """
        loop = asyncio.get_running_loop()
        next_sweep = loop.time()
        while True:
            await asyncio.sleep(self.config.alias_poll_seconds)
            try:
                self.expiry.set_keys((key.expires for _, key in self.keys.keys), time.time())
                for version in await self.models.update():
                    logger.warning("models: %s answers from now on", version.id)
                if loop.time() >= next_sweep:
                    for task in self.models.tasks.values():
                        await loop.run_in_executor(None, task.sweep)
                    next_sweep = loop.time() + SWEEP_SECONDS
            except (FusionRayError, OSError, RayActorError) as error:
                # The current versions continue to answer.
                logger.warning("models: %s; the versions in use stay", error)
            except Exception:
                # A version whose warm-up breaks must not end the look-out for the next one.
                logger.exception("models: an unexpected error; the versions in use stay")
