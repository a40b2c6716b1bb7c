"""What face fusion does for a caller, whichever route it came by."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from fusionray.safety.audit import AuditEntry, hash_bytes
from fusionray.serving.auth.callers import Caller
from fusionray.serving.pipeline.face_stage import PictureService
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.schema import FuseOptions, FuseReply, FuseTask, IdentityReply, Problem


@dataclass(frozen=True)
class FuseRequest:
    """What a caller asks for: a source (a picture, or the handle of an identity), a target, and how."""

    caller: Caller
    source: bytes | str
    target: bytes
    options: FuseOptions
    model: str | None
    asked_at: float = field(default_factory=time.perf_counter)

    def write_entry(self, reply: Any, common: dict[str, Any]) -> AuditEntry:
        """Name both pictures by their hashes. A handle is a secret: its hash tells only which is which."""
        source = self.source.encode() if isinstance(self.source, str) else self.source
        return AuditEntry(
            **common,
            source_sha256=hash_bytes(source),
            target_sha256=hash_bytes(self.target),
            num_faces=len(reply.boxes) if isinstance(reply, FuseReply) else None,
        )


class FusionService:
    """Fuse pictures and keep identities. Whatever goes wrong is an answer, a `Problem`."""

    def __init__(self, requests: RequestService, pictures: PictureService) -> None:
        self.requests = requests
        self.pictures = pictures

    async def fuse(self, wish: FuseRequest) -> FuseReply | Problem:
        """Make one picture."""
        requests = self.requests
        version = requests.choose(wish.caller, wish.model)
        if isinstance(version, Problem):
            return await requests.close(wish, version, "")
        deadline = time.time() + requests.config.limits.request_timeout_seconds
        task = FuseTask(wish.source, wish.target, version, wish.options, deadline, wish.caller.name)
        reply = await requests.close(wish, await requests.guarded(self.pictures.fuse(task)), version.name)
        if isinstance(reply, FuseReply):
            requests.measures.faces.inc(len(reply.boxes), {"model": version.name})
        return reply

    async def keep_identity(self, caller: Caller, source: bytes, consent: str | None) -> IdentityReply | Problem:
        """Keep the largest face of a picture under a handle."""
        reply = await self.requests.guarded(self.pictures.keep_identity(source, caller.name, consent))
        ended = (reply.status, reply.reason) if isinstance(reply, Problem) else (201, "")
        self.requests.measures.count_end(*ended, "")
        return reply
