"""Encode the source faces of a request: of pictures, decoded as small as the face allows, or of stored faces."""

from __future__ import annotations

from contextlib import suppress

from fusionray.errors import ConsentRefused, ImageRejected, NoFaceFound, UnknownIdentity
from fusionray.faces.image_files.decode import choose_reduction
from fusionray.runtime.face_preprocessor import FacePreprocessor, box_of, find_largest_face
from fusionray.runtime.pixels import FloatArray
from fusionray.safety.audit import hash_bytes
from fusionray.safety.consent import ConsentPolicy
from fusionray.serving.identities.encryption import cut_region
from fusionray.serving.identities.store import IdentityStore
from fusionray.serving.pipeline.picture_codec import PictureCodec, Stopwatch, describe_fault
from fusionray.serving.schema import FuseTask, IdentityReply, KeepTask, Problem

# A reduced picture keeps so many pixels on its shorter side: faces down to a tenth of it are found.
SEARCH_SIDE = 512


class SourceFaces:
    """Encode the sources of requests, if the consent policy permits them; it is asked each time."""

    def __init__(self, codec: PictureCodec, policy: ConsentPolicy, identities: IdentityStore) -> None:
        self.codec = codec
        self.policy = policy
        self.identities = identities

    def encode(
        self, task: FuseTask, preprocessor: FacePreprocessor, watch: Stopwatch
    ) -> tuple[list[FloatArray], tuple[str, ...]]:
        """Encode the sources of a task, each float32 [L] or [3,s,s]; return the sha256 of their pictures, too.

        Raises: ImageRejected, ConsentRefused, UnknownIdentity, which number the source if there are several.
        """
        sources, hashes = [], []
        for number, sent in enumerate(task.sources, 1):
            try:
                source, digest = self.encode_one(sent, task, preprocessor, watch)
            except (ImageRejected, ConsentRefused, UnknownIdentity) as error:
                if len(task.sources) > 1:
                    error.args = (f"source {number}: {error}",)
                raise
            sources.append(source)
            hashes.append(digest)
        return sources, tuple(hashes)

    def encode_one(
        self, sent: bytes | str, task: FuseTask, preprocessor: FacePreprocessor, watch: Stopwatch
    ) -> tuple[FloatArray, str]:
        """Encode a source: from its picture, or from a stored face, once for each version."""
        if isinstance(sent, bytes):
            source = encode_source_file(sent, self.codec, preprocessor, watch)
            digest = hash_bytes(sent)
            self.policy.check(digest, source, task.options.consent, task.owner)
            return source, digest
        with watch.over("read"):
            kept = self.identities.get(sent, task.owner)
            known = kept.readings.get(task.version.bundle)
            if known is None:
                known = preprocessor.encode_face(kept.decode_region(), kept.face)
                self.identities.add_reading(sent, task.version.bundle, known)
        self.policy.check(kept.source_sha256, known, task.options.consent or kept.consent, task.owner)
        return known, kept.source_sha256

    def keep(self, task: KeepTask, preprocessor: FacePreprocessor) -> IdentityReply | Problem:
        """Find the largest face of a picture, cut it out with a margin, and store it under a handle.

        Raises: ConsentRefused, StoreFull.
        """
        try:
            image = self.codec.decode(task.source)
            face = find_largest_face(preprocessor.detector, image, "source")
        except ImageRejected as error:
            return describe_fault(error, "source")
        digest = hash_bytes(task.source)
        embedding = preprocessor.encode_face(image, face)
        self.policy.check(digest, embedding, task.consent, task.owner)
        box = box_of(face)
        region, landmarks = cut_region(image, face)
        handle, expires_at = self.identities.put(
            task.owner, region, landmarks, box, source_sha256=digest, consent=task.consent
        )
        return IdentityReply(handle, expires_at, box)


def encode_source_file(
    data: bytes, codec: PictureCodec, preprocessor: FacePreprocessor, watch: Stopwatch
) -> FloatArray:
    """Encode the largest face of a picture, float32 [L] or [3,s,s].

    A large JPEG is decoded at a part of its size, in half the time. If it shows no face then, or one too small for the
    encoder, it is decoded as a whole.

    Raises: ImageRejected.
    """
    reduction = choose_reduction(data, SEARCH_SIDE)
    if reduction > 1:
        with watch.over("decode"):
            image = codec.decode(data, reduction)
        with watch.over("read"), suppress(NoFaceFound):
            face = find_largest_face(preprocessor.detector, image, "source")
            if not preprocessor.enlarges(face):
                return preprocessor.encode_face(image, face)
    with watch.over("decode"):
        image = codec.decode(data)
    with watch.over("read"):
        return preprocessor.encode_source(image)
