"""The deployment that holds the model: encoded pictures in, an encoded picture or a problem out."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Literal

import cv2

from fusionray.errors import ImageRejected
from fusionray.export.bundle import bundle_hash, read_bundle
from fusionray.faces.decode import ImageLimits, decode_image
from fusionray.faces.detect import build_detector
from fusionray.faces.face import Image
from fusionray.runtime.fuser import Fuser
from fusionray.safety.provenance import Provenance, encode_marked
from serve.schema import LONGEST_SIDE, FuseOptions, FuseReply, ModelCard, Problem, ServeConfig

Role = Literal["source", "target"]

NUM_WORKERS = 3
# What is wrong with a picture -> status and title.
VERDICTS: dict[str, tuple[int, str]] = {
    "not_an_image": (415, "Not a picture"),
    "damaged": (422, "Damaged picture"),
    "too_large": (413, "Picture too large"),
    "too_small": (422, "Picture too small"),
    "no_face": (422, "No face found"),
}


class FuserReplica:
    """Hold a fuser resident. A replica exists only once the bundle is checked and its models are warm."""

    def __init__(self, config: ServeConfig) -> None:
        cv2.setNumThreads(1)
        self.config = config
        bundle = read_bundle(config.bundle, config.tracking_uri)
        self.fuser = Fuser(bundle, build_detector(config.detector), config.runtime)
        self.fuser.warm_up()
        self.limits = ImageLimits(max_bytes=config.max_body_bytes, max_pixels=config.max_pixels, max_side=LONGEST_SIDE)
        self.provenance = Provenance(bundle.description.name, bundle_hash(bundle))
        # One picture is fused at a time; meanwhile the next is decoded and the last is encoded. The others wait here,
        # not in the router: that asks a full replica again only after growing pauses, which starves the model.
        self.turn = Lock()
        self.workers = ThreadPoolExecutor(NUM_WORKERS, "fuse")

    async def describe(self) -> ModelCard:
        """Tell what is loaded and what it runs on."""
        description, report = self.fuser.bundle.description, self.fuser.crop_fuser.report
        return ModelCard(
            name=description.name,
            size=description.size,
            template=description.template,
            bundle=self.provenance.bundle,
            licence=description.licence,
            provider=report.provider,
            providers=report.providers,
            threads=report.threads,
            runtime=report.library,
        )

    async def fuse(self, source: bytes, target: bytes, options: FuseOptions) -> FuseReply | Problem:
        """Fuse two encoded pictures off the event loop. A picture at fault is an answer here, not an exception."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.workers, self.fuse_now, source, target, options)

    def fuse_now(self, source: bytes, target: bytes, options: FuseOptions) -> FuseReply | Problem:
        """Decode, fuse and encode on the calling thread."""
        role: Role = "source"
        try:
            source_image = self.decode(source)
            role = "target"
            target_image = self.decode(target)
            role = "source"
            with self.turn:
                person = self.fuser.read_source(source_image)
                role = "target"
                fused = self.fuser.fuse_source(person, target_image, options.faces)
        except ImageRejected as error:
            return judge(error, role)
        data = encode_marked(fused.image, self.provenance, options.picture_format, self.config.jpeg_quality)
        return FuseReply(
            data=data,
            media_type=f"image/{options.picture_format}",
            num_faces=fused.num_faces,
            model=self.provenance.model,
            bundle=self.provenance.bundle,
        )

    def decode(self, data: bytes) -> Image:
        """Decode a picture within the limits of the settings.

        Raises: ImageRejected.
        """
        return decode_image(data, self.limits)


def judge(error: ImageRejected, role: Role) -> Problem:
    """Turn what is wrong with a picture into a problem that names the picture."""
    status, title = VERDICTS.get(error.reason, (422, "Picture refused"))
    detail = str(error) if role in str(error) else f"{role} picture: {error}"
    return Problem(status, error.reason, title, detail, picture=role)
