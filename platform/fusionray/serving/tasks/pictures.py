"""Any task from named pictures to a picture, as it is served: `POST /v1/TASK` with a form field for each input."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from fastapi import FastAPI

from fusionray.errors import ImageRejected
from fusionray.faces.face import Image
from fusionray.safety.audit import hash_bytes
from fusionray.safety.consent import build_policy
from fusionray.safety.provenance import Provenance
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.routes_pictures import add_picture_route
from fusionray.serving.pipeline.generator_stage import GeneratorService
from fusionray.serving.pipeline.picture_codec import PictureCodec, Stopwatch, judge
from fusionray.serving.pipeline.request_service import PictureRequest, RequestService
from fusionray.serving.schema import ModelVersion, PictureModelCard, PictureOptions, PictureReply, Problem


class PictureTask:
    """Make pictures with the bundles of one task, which all take the same `inputs`.

    Decoding and encoding happen here, in threads; `generators` runs the models.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[str, ...],
        config: ServeConfig,
        requests: RequestService,
        generators: GeneratorService,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.config = config
        self.requests = requests
        self.generators = generators
        self.codec = PictureCodec(config)
        self.policy = build_policy(config.consent)
        num_threads = config.faces.threads or len(os.sched_getaffinity(0)) + 1
        self.threads = ThreadPoolExecutor(num_threads, self.name)
        self.cards: dict[str, PictureModelCard] = {}

    async def prepare(self, version: ModelVersion) -> PictureModelCard:
        """Load a version, warm it up, and tell what it runs on."""
        card = await self.generators.prepare_pictures(version)
        self.cards[version.id] = card
        return card

    def add_routes(self, api: FastAPI) -> None:
        """Add the route that makes a picture."""
        add_picture_route(api, self)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin nothing: there is no background work."""

    def check(self) -> None:
        """Find nothing: there is no background work."""

    def sweep(self) -> None:
        """Clear nothing away: nothing is kept."""

    def drain(self) -> None:
        """End the threads once they are idle."""
        self.threads.shutdown(wait=False)

    async def make(self, request: PictureRequest) -> PictureReply | Problem:
        """Make one picture."""
        version = self.requests.choose(request.caller, request.model, request.task)
        if isinstance(version, Problem):
            return await self.requests.close(request, version, "")
        return await self.requests.close(request, await self.requests.guarded(self.run(request, version)), version.name)

    async def run(self, request: PictureRequest, version: ModelVersion) -> PictureReply | Problem:
        """Decode, let the model work, encode. A picture at fault is an answer, not an exception.

        Raises: Overloaded, ConsentRefused, SigningFailed, BundleInvalid.
        """
        loop = asyncio.get_running_loop()
        watch = Stopwatch()
        card = self.cards.get(version.id) or await self.prepare(version)
        with watch.over("total"):
            decoded = await loop.run_in_executor(self.threads, self.decode, request, watch)
            if isinstance(decoded, Problem):
                return decoded
            with watch.over("run"):
                made, waited = await self.generators.run(version, decoded)
            watch.times["queue"] = waited * 1000.0
            watch.times["run"] -= watch.times["queue"]
            provenance = Provenance(card.title, version.bundle)
            data = await loop.run_in_executor(self.threads, self.encode, made, provenance, request.options, watch)
        return PictureReply(
            data=data,
            media_type=f"image/{request.options.picture_format}",
            model=card.title,
            bundle=version.bundle,
            test_key=self.codec.signer.is_test,
            timing=watch.times,
        )

    def decode(self, request: PictureRequest, watch: Stopwatch) -> dict[str, Image] | Problem:
        """Decode every picture and ask whether it may be used, on the calling thread.

        Raises: ConsentRefused.
        """
        decoded: dict[str, Image] = {}
        for name, data in request.pictures.items():
            with watch.over("decode"):
                try:
                    decoded[name] = self.codec.decode(data)
                except ImageRejected as error:
                    return judge(error, name)
            self.policy.check(hash_bytes(data), None, request.options.consent, request.caller.name)
        return decoded

    def encode(self, made: Image, provenance: Provenance, options: PictureOptions, watch: Stopwatch) -> bytes:
        """Encode and sign what was made, on the calling thread.

        Raises: SigningFailed.
        """
        with watch.over("encode"):
            return self.codec.encode(made, provenance, options.picture_format, mark=options.mark)
