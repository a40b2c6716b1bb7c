"""The face stage: decode pictures, find, align and read faces; later paste the fused faces and encode the picture."""

from __future__ import annotations

import time
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.errors import ImageRejected
from fusionray.faces.detectors.factory import DetectorPool
from fusionray.faces.face import Image
from fusionray.faces.image_files.headers.image_header import PictureFormat, answer_format
from fusionray.runtime.batching import CropBatcher
from fusionray.runtime.crop_fuser import FusedCrops
from fusionray.runtime.face_preprocessor import (
    FaceCrops,
    FacePreprocessor,
    PictureRole,
)
from fusionray.runtime.fuser import paste_fused, stack_sources
from fusionray.runtime.head_parser import open_parser
from fusionray.runtime.pixel_boost import join_phases, repeat_sources, split_phases
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.restorer import FaceRestorer, describe_makers, open_restorer
from fusionray.safety.consent import build_policy
from fusionray.safety.provenance import Provenance
from fusionray.safety.target_policy import open_target_policy
from fusionray.serving.config import ServeConfig
from fusionray.serving.identities.store import open_store
from fusionray.serving.model_cards import ModelCard, ModelVersion
from fusionray.serving.pipeline.generator_stage import GeneratorService
from fusionray.serving.pipeline.memory_budget import MemoryBudget
from fusionray.serving.pipeline.model_cache import Announce, ModelCache, open_bundle
from fusionray.serving.pipeline.picture_codec import PictureCodec, Stopwatch, describe_fault
from fusionray.serving.pipeline.picture_threads import open_picture_threads
from fusionray.serving.pipeline.source_faces import SourceFaces
from fusionray.serving.pipeline.target_faces import TargetFaces
from fusionray.serving.schema import FacesReply, FindTask, FuseReply, FuseTask, IdentityReply, KeepTask, Problem


@dataclass(frozen=True, eq=False)
class PreparedTarget:
    """A decoded target picture, its faces, what the generator gets (crops of its size, an encoded source for each),
    the hashes of the source pictures, and the format of the answer.
    """

    target: Image
    faces: FaceCrops
    crops: NDArray[np.uint8]
    sources: FloatArray
    sources_sha256: tuple[str, ...]
    picture_format: PictureFormat


class LoadedPreprocessor:
    """The preprocessor of a version: it crops faces and encodes source faces."""

    def __init__(
        self, version: ModelVersion, config: ServeConfig, detectors: DetectorPool, restorer: FaceRestorer | None
    ) -> None:
        bundle = open_bundle(version, config.tracking_uri)
        self.skin = bundle.description.skin
        self.preprocessor = FacePreprocessor(bundle, detectors, config.runtime)
        self.preprocessor.warm_up()
        self.parser = open_parser(bundle, config.runtime)
        self.provenance = Provenance(describe_makers(bundle.description.name, restorer), version.bundle)


class FaceStage:
    """Process pictures in threads, each once the memory for it is free. `announce`: see `ModelCache`."""

    def __init__(
        self,
        config: ServeConfig,
        fuser: GeneratorService,
        budget: MemoryBudget | None = None,
        announce: Announce | None = None,
    ) -> None:
        cv2.setNumThreads(1)
        self.config = config
        self.fuser = fuser
        self.threads = open_picture_threads(config, "faces")
        self.detectors = DetectorPool(config.detector, self.threads.num_threads, config.smallest_face)
        self.restorer = open_restorer(config.restorer, config.runtime)
        self.models = ModelCache(
            lambda version: LoadedPreprocessor(version, config, self.detectors, self.restorer),
            config.models_per_replica,
            announce=announce,
        )
        self.target_policy = open_target_policy(config.target_policy)
        self.codec = PictureCodec(config)
        self.identities = open_store(config.identities)
        self.sources = SourceFaces(self.codec, build_policy(config.consent), self.identities)
        self.targets = TargetFaces(self.codec, self.detectors, config.faces.remember_seconds)
        self.budget = budget or MemoryBudget(self.codec.decoded_bytes)

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version, here and in the generator stage, and describe what it runs on."""
        await self.models.get(version)
        return await self.fuser.prepare(version)

    async def fuse(self, task: FuseTask) -> FuseReply | Problem:
        """Make one picture. A faulty picture is returned as a problem, not raised.

        Raises: Overloaded, ConsentRefused, TargetRefused, UnknownIdentity, SigningFailed; TimeoutError if the
            deadline passed before the work started.
        """
        watch = Stopwatch()
        loaded = await self.models.get(task.version)
        sent = (*task.sources, task.target, task.reference.picture if task.reference else None)
        pictures = [picture for picture in sent if isinstance(picture, bytes)]
        # While targets of a batch wait for memory, the reference that they share is kept.
        with self.targets.hold_reference(task):
            async with self.budget.reserve(pictures):
                return await self.fuse_within_budget(task, loaded, watch)

    async def fuse_within_budget(
        self, task: FuseTask, loaded: LoadedPreprocessor, watch: Stopwatch
    ) -> FuseReply | Problem:
        """Make one picture, of which the memory is reserved."""
        with watch.over("total"):
            batcher = await self.fuser.find_here(task.version)
            prepared, data = await self.threads.run(self.begin, task, loaded, batcher, watch)
            if isinstance(prepared, Problem):
                return prepared
            if data is None:
                with watch.over("fuse"):
                    fused, waited = await self.fuser.fuse(task.version, prepared.sources, prepared.crops)
                watch.times["queue"] = waited * 1000.0
                watch.times["fuse"] -= watch.times["queue"]
                data = await self.threads.run(self.finish, task, prepared, fused, loaded, watch)
        return FuseReply(
            data=data,
            media_type=f"image/{prepared.picture_format}",
            boxes=prepared.faces.boxes,
            sources_sha256=prepared.sources_sha256,
            model=loaded.provenance.model,
            bundle=loaded.provenance.bundle,
            test_key=self.codec.signer.is_test,
            timing=watch.times,
        )

    def begin(
        self, task: FuseTask, loaded: LoadedPreprocessor, batcher: CropBatcher | None, watch: Stopwatch
    ) -> tuple[PreparedTarget | Problem, bytes | None]:
        """Decode and read the pictures; make the picture as well, on the calling thread, if its crops can be fused now.

        Returns what was prepared, and the encoded picture, or None if the crops have to wait, are more than a batch, or
        are fused somewhere else.

        Raises: as `analyse`; SigningFailed.
        """
        prepared = self.analyse(task, loaded, watch)
        if isinstance(prepared, Problem) or batcher is None:
            return prepared, None
        with watch.over("fuse"):
            fused = batcher.fuse_at_once(prepared.sources, prepared.crops)
        if fused is None:
            del watch.times["fuse"]
            return prepared, None
        watch.times["queue"] = 0.0
        return prepared, self.finish(task, prepared, fused, loaded, watch)

    def analyse(self, task: FuseTask, loaded: LoadedPreprocessor, watch: Stopwatch) -> PreparedTarget | Problem:
        """Decode and read the pictures, on the calling thread.

        Raises: TimeoutError if the deadline has passed; ConsentRefused, TargetRefused, UnknownIdentity.
        """
        if time.time() > task.deadline:
            raise TimeoutError
        role: PictureRole = "source"
        try:
            sources, hashes = self.sources.encode(task, loaded.preprocessor, watch)
            role = "reference"
            with watch.over("read"):
                reference = self.targets.read_reference(task, loaded.preprocessor)
            role = "target"
            with watch.over("decode"):
                target_image = self.codec.decode(task.target)
            if self.target_policy is not None and not self.target_policy.sees_faces:
                self.target_policy.check(target_image)
            with watch.over("detect"):
                chosen = self.targets.choose(task, target_image, reference, loaded.preprocessor)
                if len(chosen) > self.config.limits.max_faces:
                    reason = f"it shows {len(chosen)} faces; {self.config.limits.max_faces} are the limit"
                    raise ImageRejected("too_many_faces", reason)
                if self.target_policy is not None and self.target_policy.sees_faces:
                    self.target_policy.check(target_image, chosen)
                boost = min(task.options.pixel_boost, self.config.limits.max_pixel_boost)
                faces = loaded.preprocessor.cut_crops(target_image, chosen, boost)
        except ImageRejected as error:
            return describe_fault(error, role)
        picture_format = task.options.picture_format or answer_format(task.target)
        return PreparedTarget(
            target_image,
            faces,
            split_phases(faces.crops, faces.factor),
            repeat_sources(stack_sources(sources, len(chosen)), faces.factor),
            hashes,
            picture_format,
        )

    async def find_faces(self, task: FindTask) -> FacesReply | Problem:
        """Find the faces of a picture. A faulty picture is returned as a problem, not raised."""
        loaded = await self.models.get(task.version) if task.reference is not None else None
        pictures = [picture for picture in (task.picture, task.reference) if picture is not None]
        async with self.budget.reserve(pictures):
            return await self.threads.run(self.targets.describe, task, loaded.preprocessor if loaded else None)

    async def keep_identity(self, task: KeepTask) -> IdentityReply | Problem:
        """Store the largest face of a picture under a handle.

        Raises: ConsentRefused, StoreFull.
        """
        loaded = await self.models.get(task.version)
        async with self.budget.reserve((task.source,)):
            return await self.threads.run(self.sources.keep, task, loaded.preprocessor)

    def finish(
        self, task: FuseTask, prepared: PreparedTarget, fused: FusedCrops, loaded: LoadedPreprocessor, watch: Stopwatch
    ) -> bytes:
        """Paste the fused crops and encode the picture, on the calling thread."""
        with watch.over("paste"):
            picture = paste_fused(
                prepared.target,
                prepared.faces,
                join_phases(fused, prepared.faces.factor),
                task.options.strength,
                skin=task.options.skin or loaded.skin,
                restorer=self.restorer,
                parser=loaded.parser,
                template=loaded.preprocessor.template,
            )
        with watch.over("encode"):
            return self.codec.encode(
                picture.image, task.target, loaded.provenance, prepared.picture_format, mark=task.options.mark
            )
