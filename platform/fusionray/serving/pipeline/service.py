"""What the service does for a caller, whichever route it came by: permission, quota, model, work, record of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError

from fusionray.errors import AuditFailed, QuotaExceeded
from fusionray.safety.audit import AuditEntry, AuditLog, hash_bytes
from fusionray.serving.auth.callers import Caller
from fusionray.serving.auth.rate_limits import RateLimitClient
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.problems import REFUSALS, explain
from fusionray.serving.metrics import RequestMetrics
from fusionray.serving.pipeline.face_stage import PictureService
from fusionray.serving.pipeline.model_registry import ModelRegistry, UnknownModel
from fusionray.serving.schema import FuseOptions, FuseReply, FuseTask, IdentityReply, ModelVersion, Problem, unavailable

logger = logging.getLogger("ray.serve")

Reply = TypeVar("Reply", FuseReply, IdentityReply)


@dataclass(frozen=True)
class FuseRequest:
    """What a caller asks for: a source (a picture, or the handle of an identity), a target, and how."""

    caller: Caller
    source: bytes | str
    target: bytes
    options: FuseOptions
    model: str | None
    asked_at: float = field(default_factory=time.perf_counter)


class FusionService:
    """Serve callers. Whatever goes wrong with a request is an answer, a `Problem`, and is counted and recorded."""

    def __init__(
        self, config: ServeConfig, book: ModelRegistry, pictures: PictureService, quotas: RateLimitClient | None = None
    ) -> None:
        self.config = config
        self.book = book
        self.pictures = pictures
        self.quotas = quotas
        self.measures = RequestMetrics()
        self.audit = AuditLog(config.audit) if config.audit.path else None

    async def admit(self, caller: Caller, num_images: int) -> Problem | None:
        """Count a request for so many pictures against the quota of the caller's key.

        Gives a problem if the quota is used up, or cannot be asked for.
        """
        if caller.key is None or self.quotas is None:
            return None
        try:
            await self.quotas.spend(caller.key, num_images)
        except QuotaExceeded as error:
            self.measures.count_end(429, error.quota, "")
            return explain(error)
        except (RayActorError, DeploymentUnavailableError):
            return unavailable("not_ready", "the ledger of quotas does not answer")
        return None

    async def fuse(self, wish: FuseRequest) -> FuseReply | Problem:
        """Make one picture."""
        version = self.choose(wish.caller, wish.model)
        if isinstance(version, Problem):
            return await self.close(wish, version, "")
        deadline = time.time() + self.config.limits.request_timeout_seconds
        task = FuseTask(wish.source, wish.target, version, wish.options, deadline, wish.caller.name)
        return await self.close(wish, await self.guarded(self.pictures.fuse(task)), version.name)

    async def keep_identity(self, caller: Caller, source: bytes, consent: str | None) -> IdentityReply | Problem:
        """Keep the largest face of a picture under a handle."""
        reply = await self.guarded(self.pictures.keep_identity(source, caller.name, consent))
        self.measures.count_end(*((reply.status, reply.reason) if isinstance(reply, Problem) else (201, "")), "")
        return reply

    def choose(self, caller: Caller, model: str | None) -> ModelVersion | Problem:
        """Choose who answers, if the caller's key is good for it."""
        try:
            version = self.book.choose(model)
        except UnknownModel as error:
            return Problem(404, "unknown_model", "No such model", str(error))
        if caller.key is not None and not caller.key.may_use(version.name):
            detail = f"the key {caller.name} may not use the model {version.name}; ask for another"
            return Problem(403, "model_not_allowed", "Not allowed", detail)
        return version

    async def guarded(self, work: Awaitable[Reply | Problem]) -> Reply | Problem:
        """Wait for work as long as a request may take; turn overload, losses and refusals into problems."""
        try:
            return await asyncio.wait_for(work, self.config.limits.request_timeout_seconds)
        except REFUSALS as error:
            return explain(error)

    async def close(self, wish: FuseRequest, reply: FuseReply | Problem, model: str) -> FuseReply | Problem:
        """Count how a request ended, and write it down."""
        if self.audit is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(None, self.write_down, wish, reply, model)
            except AuditFailed as error:
                logger.error("audit: %s", error)
                reply = unavailable("audit_failed", "the request could not be written down, and none is done without")
        if isinstance(reply, Problem):
            self.measures.count_end(reply.status, reply.reason, model)
        else:
            self.measures.count_end(200, "", model)
            self.measures.count_stages(reply.timing, model)
            self.measures.faces.inc(len(reply.boxes), {"model": model})
        return reply

    def write_down(self, wish: FuseRequest, reply: FuseReply | Problem, model: str) -> None:
        """Write the line of a request: hashes, no picture. A handle is a secret: its hash tells only which is which.

        Raises: AuditFailed.
        """
        assert self.audit is not None
        made = reply if isinstance(reply, FuseReply) else None
        entry = AuditEntry(
            request=wish.caller.request,
            status=reply.status if isinstance(reply, Problem) else 200,
            reason=reply.reason if isinstance(reply, Problem) else "",
            duration_ms=(time.perf_counter() - wish.asked_at) * 1000.0,
            model=model,
            bundle=made.bundle if made else "",
            who=wish.caller.name,
            source_sha256=hash_bytes(wish.source.encode() if isinstance(wish.source, str) else wish.source),
            target_sha256=hash_bytes(wish.target),
            output_sha256=hash_bytes(made.data) if made else None,
            num_faces=len(made.boxes) if made else None,
        )
        self.audit.write(entry)
