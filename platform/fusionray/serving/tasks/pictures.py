"""The served task of any bundle that makes a picture of named pictures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fusionray.errors import ImageRejected
from fusionray.faces.face import Image
from fusionray.faces.image_files.headers.image_header import PictureFormat, answer_format
from fusionray.safety.audit import hash_bytes
from fusionray.safety.consent import build_policy
from fusionray.safety.provenance import Provenance
from fusionray.safety.target_policy import open_target_policy
from fusionray.serving.model_cards import ModelVersion, PictureModelCard
from fusionray.serving.pipeline.memory_budget import estimate_bytes
from fusionray.serving.pipeline.picture_codec import PictureCodec, Stopwatch, describe_fault
from fusionray.serving.pipeline.picture_threads import open_picture_threads
from fusionray.serving.pipeline.request_service import PictureRequest
from fusionray.serving.schema import PictureReply, Problem
from fusionray.serving.tasks.parts import Parts


class PictureTask:
    """Make pictures with the bundles of one task, which all take the same `inputs`.

    Decoding and encoding happen here, in threads; the generators of `parts` run the models.
    """

    def __init__(self, name: str, inputs: tuple[str, ...], parts: Parts) -> None:
        self.name = name
        self.inputs = inputs
        self.config = config = parts.config
        self.requests = parts.requests
        self.generators = parts.generators
        self.budget = parts.budget
        self.codec = PictureCodec(config)
        self.policy = build_policy(config.consent)
        self.target_policy = open_target_policy(config.target_policy)
        self.threads = open_picture_threads(config, self.name)
        self.cards: dict[str, PictureModelCard] = {}

    async def prepare(self, version: ModelVersion) -> PictureModelCard:
        """Load a version, warm it up, and describe what it runs on."""
        card = await self.generators.prepare_pictures(version)
        self.cards[version.id] = card
        return card

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing: the task has no background work."""

    def check(self) -> None:
        """Do nothing: the task has no background work."""

    def sweep(self) -> None:
        """Do nothing: the task stores nothing."""

    def drain(self) -> None:
        """End the threads once they are idle."""
        self.threads.shutdown()

    async def make(self, request: PictureRequest) -> PictureReply | Problem:
        """Make one picture."""
        version = self.requests.choose(request.caller, request.model, request.task)
        if isinstance(version, Problem):
            return await self.requests.close(request, version, "")
        reply = await self.requests.wait_for(self.run_within_budget(request, version))
        return await self.requests.close(request, reply, version.name)

    async def run_within_budget(self, request: PictureRequest, version: ModelVersion) -> PictureReply | Problem:
        """Make one picture once the memory for it is free; raises as `run` does."""
        async with self.budget.hold(self.estimate_bytes(request.pictures)):
            return await self.run(request, version)

    def estimate_bytes(self, pictures: Mapping[str, bytes]) -> int:
        """Estimate the memory that a request takes: that of its decoded pictures."""
        return sum(map(estimate_bytes, pictures.values()))

    async def run(self, request: PictureRequest, version: ModelVersion) -> PictureReply | Problem:
        """Decode the pictures, run the model, encode. A faulty picture is returned as a problem, not raised.

        Raises: Overloaded, ConsentRefused, SigningFailed, BundleInvalid.
        """
        watch = Stopwatch()
        card = self.cards.get(version.id) or await self.prepare(version)
        with watch.over("total"):
            decoded = await self.threads.run(self.decode, request, watch)
            if isinstance(decoded, Problem):
                return decoded
            with watch.over("run"):
                made, waited = await self.generators.run(version, decoded, request.settings)
            watch.times["queue"] = waited * 1000.0
            watch.times["run"] -= watch.times["queue"]
            provenance = Provenance(card.title, version.bundle)
            # The answer is like the first input, unless the request says otherwise.
            target = next(iter(request.pictures.values()))
            picture_format = request.options.picture_format or answer_format(target)
            data = await self.threads.run(
                self.encode, made, target, provenance, picture_format, mark=request.options.mark, watch=watch
            )
        return PictureReply(
            data=data,
            media_type=f"image/{picture_format}",
            model=card.title,
            bundle=version.bundle,
            test_key=self.codec.signer.is_test,
            timing=watch.times,
        )

    def decode(self, request: PictureRequest, watch: Stopwatch) -> dict[str, Image] | Problem:
        """Decode every picture and ask both policies about it, on the calling thread.

        Raises: ConsentRefused, TargetRefused.
        """
        decoded: dict[str, Image] = {}
        for name, data in request.pictures.items():
            with watch.over("decode"):
                try:
                    decoded[name] = self.codec.decode(data)
                except ImageRejected as error:
                    return describe_fault(error, name)
            self.policy.check(hash_bytes(data), None, request.options.consent, request.caller.name)
            if self.target_policy is not None:
                self.target_policy.check(decoded[name])
        return decoded

    def encode(
        self,
        made: Image,
        target: bytes,
        provenance: Provenance,
        picture_format: PictureFormat,
        *,
        mark: bool,
        watch: Stopwatch,
    ) -> bytes:
        """Encode and sign the picture that was made of `target`, on the calling thread.

        Raises: SigningFailed.
        """
        with watch.over("encode"):
            return self.codec.encode(made, target, provenance, picture_format, mark=mark)
