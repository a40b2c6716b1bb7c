"""Face fusion for a caller, the same on every route."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from fusionray.bundle.description import FACE_FUSION
from fusionray.safety.audit import AuditEntry, SourcesAuditEntry, TaskAuditEntry, hash_bytes
from fusionray.serving.auth.callers import Caller
from fusionray.serving.identities.store import IdentityStore
from fusionray.serving.pipeline.picture_service import PictureService
from fusionray.serving.pipeline.request_service import NamedInputs, RequestService
from fusionray.serving.schema import (
    FacesReply,
    FindTask,
    FuseOptions,
    FuseReply,
    FuseTask,
    IdentityReply,
    IdentityState,
    KeepTask,
    Problem,
    ReferenceFace,
    RemovedIdentity,
)


@dataclass(frozen=True)
class FuseRequest:
    """One request of a caller: sources (pictures, or handles of identities), a target, and options.

    One source is for all faces; of several, each is for one of the numbers in `options.faces`.
    """

    caller: Caller
    sources: tuple[bytes | str, ...]
    target: bytes
    options: FuseOptions
    model: str | None
    reference: ReferenceFace | None = None
    asked_at: float = field(default_factory=time.perf_counter)

    def write_entry(self, reply: Any, common: dict[str, Any]) -> AuditEntry:
        """Build the entry with the hashes of the pictures.

        If a request with a handle fails, the picture behind it may be unknown: then the handle, a secret, is hashed.
        """
        fused = isinstance(reply, FuseReply)
        hashes = reply.sources_sha256 if fused else tuple(map(hash_source, self.sources))
        fields = {
            **common,
            "source_sha256": hashes[0],
            "target_sha256": hash_bytes(self.target),
            "reference_sha256": hash_bytes(self.reference.picture) if self.reference else None,
            "num_faces": len(reply.boxes) if fused else None,
        }
        if len(hashes) > 1:
            return SourcesAuditEntry(**fields, sources_sha256=hashes)
        return AuditEntry(**fields)


def hash_source(source: bytes | str) -> str:
    """Return the sha256 of a picture or handle, hexadecimal."""
    return hash_bytes(source.encode() if isinstance(source, str) else source)


@dataclass(frozen=True)
class HandleRequest:
    """One request of a caller about a stored face; `task` says what is done with it."""

    task: str
    caller: Caller
    handle: str
    asked_at: float = field(default_factory=time.perf_counter)

    def write_entry(self, reply: Any, common: dict[str, Any]) -> TaskAuditEntry:
        """Build the entry with the hash of the picture behind the handle; if there is none, of the handle."""
        if isinstance(reply, IdentityState | RemovedIdentity):
            hashes = {"source": reply.source_sha256}
        else:
            hashes = {"identity": hash_bytes(self.handle.encode())}
        return TaskAuditEntry(**common, task=self.task, inputs_sha256=hashes)


class FusionService:
    """Fuse pictures and store identities. A request that fails is answered with a `Problem`."""

    def __init__(self, requests: RequestService, pictures: PictureService, identities: IdentityStore) -> None:
        self.requests = requests
        self.pictures = pictures
        self.identities = identities

    async def fuse(self, request: FuseRequest) -> FuseReply | Problem:
        """Make one picture."""
        requests = self.requests
        version = requests.choose(request.caller, request.model)
        if isinstance(version, Problem):
            return await requests.close(request, version, "")
        deadline = time.time() + requests.config.limits.request_timeout_seconds
        who, options = request.caller.name, request.options
        task = FuseTask(request.sources, request.target, version, options, deadline, who, request.reference)
        return await requests.close(request, await requests.wait_for(self.pictures.fuse(task)), version.name)

    async def find_faces(self, caller: Caller, picture: bytes, reference: bytes | None = None) -> FacesReply | Problem:
        """Find the faces of a picture, and compare them with the largest of another one."""
        sent = {"target": picture} if reference is None else {"target": picture, "reference": reference}
        request = NamedInputs("faces", caller, sent)
        # Every model has the same detector; the default one compares.
        version = self.requests.registry.choose(None, FACE_FUSION)
        reply = await self.requests.wait_for(self.pictures.find_faces(FindTask(picture, version, reference)))
        return await self.requests.close(request, reply, "")

    async def keep_identity(self, caller: Caller, source: bytes, consent: str | None) -> IdentityReply | Problem:
        """Store the largest face of a picture under a handle."""
        # Whatever model will use the face: this one reads it for the consent policy.
        version = self.requests.registry.choose(None, FACE_FUSION)
        task = KeepTask(source, version, consent, caller.name)
        request = NamedInputs("identities", caller, {"source": source})
        reply = await self.requests.wait_for(self.pictures.keep_identity(task))
        return await self.requests.close(request, reply, "")

    async def find_identity(self, caller: Caller, handle: str) -> IdentityState | Problem:
        """Find the stored face of a handle."""

        async def find() -> IdentityState:
            face = await asyncio.to_thread(self.identities.get, handle, caller.name)
            return IdentityState(face.expires_at, face.source_sha256)

        request = HandleRequest("identities.find", caller, handle)
        return await self.requests.close(request, await self.requests.wait_for(find()), "")

    async def remove_identity(self, caller: Caller, handle: str) -> RemovedIdentity | Problem:
        """Remove the stored face of a handle."""

        async def remove() -> RemovedIdentity:
            face = await asyncio.to_thread(self.identities.remove, handle, caller.name)
            return RemovedIdentity(face.source_sha256)

        request = HandleRequest("identities.remove", caller, handle)
        return await self.requests.close(request, await self.requests.wait_for(remove()), "")
