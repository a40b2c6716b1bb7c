"""The served task of face fusion: single pictures, batches, jobs and stored identities."""

from __future__ import annotations

import asyncio

from fusionray.bundle.description import FACE_FUSION
from fusionray.serving.auth.callers import Caller
from fusionray.serving.identities.store import open_store
from fusionray.serving.jobs.items import ItemOutcome, JobInputs, JobItem
from fusionray.serving.model_cards import ModelCard, ModelVersion
from fusionray.serving.pipeline.face_stage import FaceStage
from fusionray.serving.pipeline.fusion_service import FuseRequest, FusionService
from fusionray.serving.pipeline.picture_service import PictureService, RemotePictures
from fusionray.serving.schema import FuseOptions, Problem, ReferenceFace
from fusionray.serving.tasks.parts import Parts


class FaceFusion:
    """Fuse faces: find and paste them here or in the face stage of `parts`, whose generators fuse the crops."""

    def __init__(self, parts: Parts) -> None:
        assert parts.jobs is not None
        self.config = config = parts.config
        self.requests = parts.requests
        self.jobs = parts.jobs
        self.pictures: PictureService
        if parts.faces is not None:
            self.pictures = RemotePictures(parts.faces, config)
            self.identities = open_store(config.identities)
        else:
            # The face stage of this replica has a store already: decrypted faces lie in memory once.
            self.pictures = stage = FaceStage(config, parts.generators, parts.budget)
            self.identities = stage.identities
        self.service = FusionService(parts.requests, self.pictures, self.identities)
        parts.jobs.tasks[FACE_FUSION] = self

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version, warm it up, and describe what it runs on."""
        return await self.pictures.prepare(version)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing: the task has no background work of its own."""

    def check(self) -> None:
        """Do nothing: the task has no background work of its own."""

    def sweep(self) -> None:
        """Remove expired identities."""
        self.identities.sweep()

    def drain(self) -> None:
        """Do nothing: jobs are drained by their service."""

    async def make_outcome(self, request: FuseRequest) -> ItemOutcome:
        """Make one picture of a batch or job."""
        reply = await self.service.fuse(request)
        if isinstance(reply, Problem):
            return ItemOutcome(problem=reply.document())
        boxes = [[round(value) for value in box] for box in reply.boxes]
        return ItemOutcome.of(reply.data, reply.media_type, boxes=boxes, model=reply.model, bundle=reply.bundle)

    def read_item(self, item: JobItem, caller: Caller) -> FuseRequest:
        """Build the request for one picture of a job, on the calling thread; URIs are read only now.

        Raises: ImageRejected for a URI that cannot be read; OSError.
        """
        target, inputs = self.jobs.read_target(item, "target"), item.inputs
        if inputs.source_uri is not None:
            source: bytes | str | None = self.jobs.uris.read(inputs.source_uri, "source")
        else:
            source = inputs.source if inputs.source is not None else inputs.identity
        assert source is not None
        options = FuseOptions(**{**item.options["fuse"], "consent": inputs.consent})
        return FuseRequest(caller, (source,), target, options, item.options["model"], find_reference(inputs))


def find_reference(inputs: JobInputs) -> ReferenceFace | None:
    """Return the reference face of a job, if it has one."""
    if inputs.reference is None or inputs.reference_similarity is None:
        return None
    return ReferenceFace(inputs.reference, inputs.reference_similarity)
