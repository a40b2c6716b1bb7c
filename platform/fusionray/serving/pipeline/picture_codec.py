"""Decode the pictures that clients send, within limits, and encode those that they get, with mark and signature."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from fusionray.errors import ImageRejected
from fusionray.faces.face import Image
from fusionray.faces.image_files.decode import ImageLimits, decode_image
from fusionray.faces.image_files.headers.image_header import PictureFormat, has_half_chroma
from fusionray.faces.image_files.metadata import read_metadata
from fusionray.safety.mark import Mark
from fusionray.safety.output import encode_output
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import build_signer
from fusionray.serving.config import ServeConfig
from fusionray.serving.metrics import ExpiryMetrics
from fusionray.serving.pipeline.memory_budget import BYTES_PER_PIXEL, choose_decoded_bytes, estimate_bytes
from fusionray.serving.schema import LONGEST_SIDE, Problem

# Reason why a picture is refused -> status and title.
PICTURE_PROBLEMS: dict[str, tuple[int, str]] = {
    "not_an_image": (415, "Not a picture"),
    "unknown_format": (415, "Format not read"),
    "damaged": (422, "Damaged picture"),
    "too_large": (413, "Picture too large"),
    "too_small": (422, "Picture too small"),
    "no_face": (422, "No face found"),
    "no_such_face": (422, "No such face"),
    "no_identity_encoder": (422, "No faces are compared"),
    "too_many_faces": (413, "Too many faces"),
    "uri_missing": (422, "No such file"),
    "uri_not_allowed": (403, "Not allowed"),
}


class Stopwatch:
    """Milliseconds by stage, in the order in which stages began."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    @contextmanager
    def over(self, stage: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.times[stage] = self.times.get(stage, 0.0) + (time.perf_counter() - started) * 1000.0


class PictureCodec:
    """Decode and encode as the settings say. Calls from several threads are allowed.

    Raises: SigningKeyInvalid.
    """

    def __init__(self, config: ServeConfig) -> None:
        limits = config.limits
        self.decoded_bytes = choose_decoded_bytes(limits)
        most = self.decoded_bytes // min(BYTES_PER_PIXEL.values())
        max_pixels = most if limits.max_pixels is None else limits.max_pixels
        self.limits = ImageLimits(max_bytes=limits.max_body_bytes, max_pixels=max_pixels, max_side=LONGEST_SIDE)
        self.is_limited_by_memory = limits.max_pixels is None
        self.signer = build_signer(config.signing)
        self.expiry = ExpiryMetrics()
        if not self.signer.is_test:
            self.expiry.set_certificate(self.signer.expires)
        self.mark = Mark(config.mark)
        self.always_mark = config.mark.enabled
        self.quality = config.jpeg_quality
        self.kept_metadata = config.metadata

    def decode(self, data: bytes, reduction: int = 1) -> Image:
        """Decode a picture, a JPEG at a 2nd, 4th or 8th of its size if `reduction` says so.

        Raises: ImageRejected.
        """
        if self.is_limited_by_memory and (needed := estimate_bytes(data)) > self.decoded_bytes:
            raise ImageRejected(
                "too_large",
                f"its pixels take {needed / 2**20:.1f} MiB of memory; {self.decoded_bytes / 2**20:.1f} MiB are the "
                "limit: make it smaller",
            )
        return decode_image(data, self.limits, reduction=reduction)

    def encode(
        self, image: Image, target: bytes, provenance: Provenance, picture_format: PictureFormat, *, mark: bool
    ) -> bytes:
        """Encode and sign a picture, with a visible mark if the client or the settings ask for it.

        `target` is the encoded picture from which it was made; the settings say which of its metadata are kept. A
        JPEG of a JPEG has its resolution of colours.

        Raises: SigningFailed.
        """
        return encode_output(
            image,
            provenance,
            picture_format,
            self.quality,
            signer=self.signer,
            mark=self.mark if self.always_mark or mark else None,
            metadata=read_metadata(target, self.kept_metadata, self.limits),
            half_chroma=has_half_chroma(target),
        )


def describe_fault(error: ImageRejected, role: str) -> Problem:
    """Turn the fault of a picture into a problem that names the picture."""
    status, title = PICTURE_PROBLEMS.get(error.reason, (422, "Picture refused"))
    detail = str(error) if role in str(error) else f"{role} picture: {error}"
    return Problem(status, error.reason, title, detail, picture=role)


@contextmanager
def name_picture(role: str) -> Iterator[None]:
    """Say of a picture that is refused which one of the request it is."""
    try:
        yield
    except ImageRejected as error:
        if f"{role} picture" in str(error):
            raise
        raise ImageRejected(error.reason, f"{role} picture: {error}") from None
