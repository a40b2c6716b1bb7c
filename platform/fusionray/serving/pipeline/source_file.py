"""Encode the source face of a request from its file, decoded as small as the face allows."""

from __future__ import annotations

from contextlib import suppress

from fusionray.errors import NoFaceFound
from fusionray.faces.decode import choose_reduction
from fusionray.runtime.face_preprocessor import FacePreprocessor, find_largest_face
from fusionray.runtime.pixels import FloatArray
from fusionray.serving.pipeline.picture_codec import PictureCodec, Stopwatch

# A reduced picture keeps so many pixels on its shorter side: faces down to a tenth of it are found.
SEARCH_SIDE = 512


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
