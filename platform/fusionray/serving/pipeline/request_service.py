"""The work for a caller, the same for every task: permission, rate limit, model, timeout, audit log and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError

from fusionray.bundle.description import FACE_FUSION
from fusionray.errors import AuditFailed, QuotaExceeded
from fusionray.safety.audit import AuditEntry, AuditLog, TaskAuditEntry, hash_bytes
from fusionray.serving.auth.callers import Caller
from fusionray.serving.auth.key_replies import AddedKey, RemovedKey
from fusionray.serving.auth.rate_limit_client import RateLimitClient, Receipt
from fusionray.serving.auth.rate_limits import LimitState
from fusionray.serving.config import ServeConfig
from fusionray.serving.metrics import RequestMetrics
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.pipeline.model_registry import ModelRegistry, UnknownModel, WrongTask
from fusionray.serving.problems import INTERNAL_ERROR, REFUSALS, explain
from fusionray.serving.schema import (
    FuseReply,
    IdentityReply,
    PictureOptions,
    PictureReply,
    Problem,
    RemovedIdentity,
    unavailable,
)

logger = logging.getLogger("ray.serve")

# How long an answer waits for the rate limiter, to tell how much is left.
LOOK_SECONDS = 1.0
# Of a caller without a key, or without limits.
NOTHING_COUNTED = Receipt("", 0, 0.0)

Reply = TypeVar("Reply")
# Of replies that are not answered 200.
STATUSES: dict[type, int] = {IdentityReply: 201, RemovedIdentity: 204, AddedKey: 201, RemovedKey: 204}


class AuditedRequest(Protocol):
    """A request for a picture, as the audit log needs it."""

    @property
    def caller(self) -> Caller:
        """The caller."""
        ...

    @property
    def asked_at(self) -> float:
        """The time of `time.perf_counter()` at which the request arrived."""
        ...

    def write_entry(self, reply: Any, common: dict[str, Any]) -> AuditEntry:
        """Build the entry: the `common` fields, and hashes of what was sent, no pictures."""
        ...


@dataclass(frozen=True)
class NamedInputs:
    """One request of a caller for a task, and what it sends: encoded pictures, or other secrets, by name."""

    task: str
    caller: Caller
    pictures: dict[str, bytes]
    asked_at: float = field(default_factory=time.perf_counter, kw_only=True)

    def write_entry(self, reply: Any, common: dict[str, Any]) -> TaskAuditEntry:
        """Build the entry: the `common` fields, the task, and the hash of everything that was sent."""
        del reply
        hashes = {name: hash_bytes(data) for name, data in self.pictures.items()}
        return TaskAuditEntry(**common, task=self.task, inputs_sha256=hashes)


@dataclass(frozen=True)
class PictureRequest(NamedInputs):
    """One request of a caller to a task that makes a picture of named pictures. `settings` are for the runner."""

    options: PictureOptions
    model: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)


class RequestService:
    """Serve callers. A request that fails is answered with a `Problem`, counted and logged."""

    def __init__(
        self, config: ServeConfig, registry: ModelRegistry, rate_limits: RateLimitClient | None = None
    ) -> None:
        self.config = config
        self.registry = registry
        self.rate_limits = rate_limits
        self.metrics = RequestMetrics()
        self.audit = AuditLog(config.audit) if config.audit.path else None

    async def admit(self, caller: Caller, num_images: int) -> Receipt | Problem:
        """Count a request for `num_images` pictures against the limits of the caller's key.

        Returns what was counted, for `refund`; or a problem if a limit is reached, or the rate limiter does not answer.
        """
        if caller.key is None or self.rate_limits is None:
            return NOTHING_COUNTED
        try:
            return await self.rate_limits.spend(caller.key, num_images)
        except QuotaExceeded as error:
            self.metrics.count_end(429, error.quota, "")
            return explain(error)
        except (RayActorError, DeploymentUnavailableError):
            return unavailable("not_ready", "the rate limiter does not answer")

    async def find_limits(self, caller: Caller, *, fresh: bool = False) -> list[LimitState] | Problem:
        """Estimate how far the limits of the caller's key are used up; `fresh` asks the rate limiter."""
        if caller.key is None or self.rate_limits is None:
            return []
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self.rate_limits.look(caller.key, fresh=fresh)
        except (TimeoutError, RayActorError, DeploymentUnavailableError):
            return unavailable("not_ready", "the rate limiter does not answer")

    def refund(self, receipt: Receipt, num_images: int) -> None:
        """Count pictures of an admitted request as not asked for, because they could not be made."""
        if self.rate_limits is not None and num_images:
            self.rate_limits.refund(receipt, num_images)

    def choose(self, caller: Caller, model: str | None, task: str = FACE_FUSION) -> ModelVersion | Problem:
        """Choose the version that answers, if it does the task and the caller's key may use its model."""
        try:
            version = self.registry.choose(model, task)
        except WrongTask as error:
            return Problem(422, "wrong_task", "Model of another task", str(error))
        except UnknownModel as error:
            return Problem(404, "unknown_model", "No such model", str(error))
        if caller.key is not None and not caller.key.may_use(version.name):
            detail = f"the key {caller.name} may not use the model {version.name}; ask for another"
            return Problem(403, "model_not_allowed", "Not allowed", detail)
        return version

    async def wait_for(self, work: Awaitable[Reply | Problem]) -> Reply | Problem:
        """Wait for work until the timeout of requests; turn overload, lost replicas and refusals into problems."""
        try:
            # Unlike `asyncio.wait_for`, it makes no task of the work.
            async with asyncio.timeout(self.config.limits.request_timeout_seconds):
                return await work
        except REFUSALS as error:
            return explain(error)
        except Exception:
            # The audit log has a line of these requests, too.
            logger.exception("request failed")
            return INTERNAL_ERROR

    async def close(self, request: AuditedRequest, reply: Reply | Problem, model: str) -> Reply | Problem:
        """Log a finished request, and count it."""
        if self.audit is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(None, self.log_request, request, reply, model)
            except AuditFailed as error:
                logger.error("audit: %s", error)
                reply = unavailable("audit_failed", "the request could not be written down, so it is not answered")
        # Once the answer has left: nobody waits for its metrics.
        asyncio.get_running_loop().call_soon(self.count, reply, model)
        return reply

    def count(self, reply: object, model: str) -> None:
        """Count a finished request in the metrics."""
        status, reason = describe_end(reply)
        self.metrics.count_end(status, reason, model)
        if isinstance(reply, PictureReply):
            self.metrics.count_stages(reply.timing, model)
        if isinstance(reply, FuseReply):
            self.metrics.faces.inc(len(reply.boxes), {"model": model})

    def log_request(self, request: AuditedRequest, reply: Reply | Problem, model: str) -> None:
        """Write a request into the audit log.

        Raises: AuditFailed.
        """
        assert self.audit is not None
        duration_ms = (time.perf_counter() - request.asked_at) * 1000.0
        status, reason = describe_end(reply)
        if isinstance(reply, Problem) and reply.rule is not None:
            reason = f"{reason}: {reply.rule}"
        made = reply if isinstance(reply, PictureReply) else None
        common = {
            "request": request.caller.request,
            "status": status,
            "reason": reason,
            "duration_ms": duration_ms,
            "model": model,
            "bundle": made.bundle if made else "",
            "who": request.caller.name,
            "output_sha256": hash_bytes(made.data) if made else None,
        }
        self.audit.write(request.write_entry(reply, common))


def describe_end(reply: object) -> tuple[int, str]:
    """Return the status and the reason with which a request ends."""
    if isinstance(reply, Problem):
        return reply.status, reply.reason
    return STATUSES.get(type(reply), 200), ""
