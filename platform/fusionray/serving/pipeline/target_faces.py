"""Find the faces of target pictures, and choose among them by a reference face."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

from fusionray.errors import ImageRejected
from fusionray.faces.detectors.factory import DetectorPool
from fusionray.faces.face import Face, Image
from fusionray.runtime.face_preprocessor import (
    FacePreprocessor,
    FaceSelection,
    PictureRole,
    box_of,
    find_largest_face,
    pick_faces,
    search_faces,
)
from fusionray.runtime.pixels import FloatArray
from fusionray.serving.pipeline.found_faces import FoundFaces
from fusionray.serving.pipeline.picture_codec import PictureCodec, describe_fault
from fusionray.serving.pipeline.reference_faces import ReferenceFaces
from fusionray.serving.schema import FacesReply, FindTask, FoundFace, FuseTask, Problem


class TargetFaces:
    """Find faces on the calling thread; those of a picture are kept for `remember_seconds`."""

    def __init__(self, codec: PictureCodec, detectors: DetectorPool, remember_seconds: float) -> None:
        self.codec = codec
        self.detectors = detectors
        self.found = FoundFaces(remember_seconds)
        self.references = ReferenceFaces()

    def hold_reference(self, task: FuseTask) -> AbstractContextManager[None]:
        """Keep the reference face of a task, if it has one, for the length of a `with` block."""
        if task.reference is None:
            return nullcontext()
        return self.references.hold(task.reference.picture, task.version.bundle)

    def read_reference(self, task: FuseTask, preprocessor: FacePreprocessor) -> FloatArray | None:
        """Read the identity of a task's reference face, float32 [E], which is held; None if it has none.

        Raises: ImageRejected.
        """
        if task.reference is None:
            return None
        picture = task.reference.picture
        return self.references.get(picture, task.version.bundle, partial(self.embed_largest, picture, preprocessor))

    def embed_largest(self, picture: bytes, preprocessor: FacePreprocessor) -> FloatArray:
        """Compute the identity of the largest face of an encoded picture, float32 [E].

        Raises: ImageRejected.
        """
        image = self.codec.decode(picture)
        return preprocessor.embed_face(image, find_largest_face(self.detectors, image, "reference"))

    def find(self, picture: bytes, image: Image, selection: FaceSelection) -> list[Face]:
        """Find the faces of a decoded picture, or only the largest, unless they were found a short while ago.

        Raises: NoFaceFound.
        """
        wanted = "largest" if selection == "largest" else "all"
        return self.found.find(picture, wanted, partial(search_faces, self.detectors, image, wanted))

    def choose(
        self, task: FuseTask, image: Image, reference: FloatArray | None, preprocessor: FacePreprocessor
    ) -> list[Face]:
        """Find the faces of a task's decoded target that are to be fused.

        Raises: ImageRejected.
        """
        found = self.find(task.target, image, task.options.faces)
        if reference is None or task.reference is None:
            return pick_faces(found, task.options.faces)
        return preprocessor.pick_similar(image, found, reference, task.reference.similarity)

    def describe(self, task: FindTask, preprocessor: FacePreprocessor | None) -> FacesReply | Problem:
        """Decode a picture, describe its faces, and compare them with the reference, which needs the preprocessor."""
        role: PictureRole = "reference"
        similarities: list[float | None] = []
        try:
            reference = self.embed_largest(task.reference, preprocessor) if task.reference and preprocessor else None
            role = "target"
            image = self.codec.decode(task.picture)
            found = self.find(task.picture, image, "all")
            if reference is not None and preprocessor is not None:
                similarities = [*preprocessor.find_similarities(image, found, reference)]
        except ImageRejected as error:
            return describe_fault(error, role)
        height, width = image.shape[:2]
        described = map(describe_face, found, similarities or [None] * len(found))
        return FacesReply(width, height, tuple(described))


def describe_face(face: Face, similarity: float | None) -> FoundFace:
    """Describe a face in plain numbers."""
    return FoundFace(box_of(face), tuple((float(x), float(y)) for x, y in face.landmarks), face.score, similarity)
