"""Prepare the inputs of the generator from pictures: detect faces, align and cut target crops, encode sources.

N faces, S crop size. An encoded source is [L] values or a picture [3,s,s]: `source_shape` of the bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import FACE_FUSION
from fusionray.errors import BundleInvalid, ImageRejected, NoFaceFound
from fusionray.faces.align import Template, affine_scale, estimate_alignment, load_template, warp_crop
from fusionray.faces.face import Detector, Face, Image, Matrix, largest_face
from fusionray.runtime.config import PixelBoost, RuntimeConfig
from fusionray.runtime.pixel_boost import choose_factor
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.source_encoding import EmbeddingSourceEncoder, open_source_encoder

# "largest", "all", "reference" (the face that is most similar to that of another picture), or the numbers of faces, as
# in "0,2": 0 is the largest face of a picture, 1 the next.
FaceSelection = str
SELECTION_PATTERN = r"^(largest|all|reference|[0-9]{1,3}(,[0-9]{1,3}){0,63})$"
# The similarity from which a face counts as that of the reference, if nobody says otherwise. It depends on the identity
# encoder: those that were trained like ArcFace give the same person 0.3 to 0.8.
REFERENCE_SIMILARITY = 0.3
PictureRole = Literal["source", "target", "reference"]
FaceBox = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class FaceCrops:
    """Aligned crops of the faces of a picture, uint8 RGB [N,S,S,3].

    `matrices`: the affine map [2,3] from picture to crop of each; `boxes`: left, top, width, height of each face, in
    picture pixels. S is `factor` times the model's size.
    """

    crops: NDArray[np.uint8]
    matrices: tuple[Matrix, ...]
    boxes: tuple[FaceBox, ...]
    factor: PixelBoost = 1


class FacePreprocessor:
    """Detect, align and encode faces as the models of a bundle take them.

    One call at a time, unless the detector is a `DetectorPool`: a detector has state during a call.

    Raises: BundleInvalid if the bundle is of another task, names an unknown template, or describes its identity encoder
        wrongly; ProviderUnavailable.
    """

    def __init__(self, bundle: Bundle, detector: Detector, settings: RuntimeConfig | None = None) -> None:
        bundle.require_task(FACE_FUSION)
        self.detector = detector
        self.size = bundle.description.size
        self.template = find_template(bundle, bundle.description.template)
        self.identity_template = find_template(bundle, bundle.description.identity_template)
        self.source_encoder = open_source_encoder(bundle, settings)

    def warm_up(self) -> None:
        """Run detector and encoder once, so that lazy allocation does not slow the first request."""
        self.detector.detect(np.zeros((self.size, self.size, 3), np.uint8))
        side = self.source_encoder.size
        self.source_encoder.encode_crops(np.zeros((1, side, side, 3), np.uint8))

    def encode_source(self, image: Image) -> FloatArray:
        """Encode the largest face of a source picture, float32 [L] or [3,s,s].

        Raises: NoFaceFound naming the source picture.
        """
        return self.encode_face(image, find_largest_face(self.detector, image, "source"))

    def encode_face(self, image: Image, face: Face) -> FloatArray:
        """Encode one face of a picture, float32 [L] or [3,s,s]."""
        size = self.source_encoder.size
        matrix = estimate_alignment(face.landmarks, self.identity_template, size)
        source: FloatArray = self.source_encoder.encode_crops(warp_crop(image, matrix, size)[None])[0]
        return source

    @property
    def compares_faces(self) -> bool:
        """Tell whether the model has an identity encoder, by which faces can be compared."""
        return isinstance(self.source_encoder, EmbeddingSourceEncoder)

    def embed_face(self, image: Image, face: Face) -> FloatArray:
        """Compute the identity of one face of a picture, float32 [E] of unit length, to compare it with others.

        Raises: ImageRejected ("no_identity_encoder") if the model takes pictures as sources.
        """
        if not isinstance(self.source_encoder, EmbeddingSourceEncoder):
            raise ImageRejected(
                "no_identity_encoder",
                "this model takes pictures as sources and compares no faces; choose them by number",
            )
        size = self.source_encoder.size
        matrix = estimate_alignment(face.landmarks, self.identity_template, size)
        identity: FloatArray = self.source_encoder.embed_crops(warp_crop(image, matrix, size)[None])[0]
        return identity

    def find_similarities(self, image: Image, faces: Sequence[Face], reference: FloatArray) -> list[float]:
        """Return the cosine of each face's identity with that of a reference face, as `embed_face` returns it.

        Raises: ImageRejected ("no_identity_encoder").
        """
        return [float(self.embed_face(image, face) @ reference) for face in faces]

    def pick_similar(self, image: Image, faces: Sequence[Face], reference: FloatArray, least: float) -> list[Face]:
        """Pick the face of a target that is most similar to a reference face.

        Raises: ImageRejected ("no_such_face") if none has a similarity of `least`; or "no_identity_encoder".
        """
        similarities = self.find_similarities(image, faces, reference)
        best = int(np.argmax(similarities))
        if similarities[best] < least:
            raise ImageRejected(
                "no_such_face",
                f"no face of the target picture has a similarity of {least:g} with the reference face; the best has "
                f"{similarities[best]:.2f}",
            )
        return [faces[best]]

    def enlarges(self, face: Face) -> bool:
        """Tell whether a face has fewer pixels in its picture than in the crop that is encoded."""
        size = self.source_encoder.size
        return affine_scale(estimate_alignment(face.landmarks, self.identity_template, size)) > 1.0

    def crop_faces(self, image: Image, faces: FaceSelection = "largest") -> FaceCrops:
        """Find and cut the chosen faces of a target picture.

        Raises: NoFaceFound naming the target picture; ImageRejected ("no_such_face").
        """
        return self.cut_crops(image, pick_faces(search_faces(self.detector, image, faces), faces))

    def cut_crops(self, image: Image, chosen: Sequence[Face], boost: PixelBoost = 1) -> FaceCrops:
        """Cut aligned crops of faces of a target picture, up to `boost` times the model's size if they are large."""
        matrices = tuple(estimate_alignment(face.landmarks, self.template, self.size) for face in chosen)
        factor = choose_factor(matrices, boost)
        side = self.size * factor
        if factor > 1:
            matrices = tuple(estimate_alignment(face.landmarks, self.template, side) for face in chosen)
        crops = np.stack([warp_crop(image, matrix, side) for matrix in matrices])
        return FaceCrops(crops, matrices, tuple(box_of(face) for face in chosen), factor)


def search_faces(detector: Detector, image: Image, selection: FaceSelection) -> list[Face]:
    """Find the faces of a target picture, the largest first; only the largest if no other one is selected.

    Raises: NoFaceFound naming the target picture.
    """
    if selection == "largest":
        return [find_largest_face(detector, image, "target")]
    return sorted(find_faces(detector, image, "target"), key=lambda face: face.area, reverse=True)


def pick_faces(found: Sequence[Face], selection: FaceSelection) -> list[Face]:
    """Pick the selected faces of those that `search_faces` found; a number that comes twice counts once.

    Raises: ImageRejected with the reason "no_such_face".
    """
    if selection in ("largest", "all"):
        return list(found)
    numbers = read_numbers(selection)
    if max(numbers) >= len(found):
        shown = f"{len(found)} faces, numbered from 0 by their size" if len(found) > 1 else "one face, number 0"
        raise ImageRejected("no_such_face", f"the target picture shows {shown}; there is no face {max(numbers)}")
    return [found[number] for number in numbers]


def read_numbers(selection: FaceSelection) -> list[int]:
    """Return the numbers of faces in a selection, each once, in their order; none if it is a word."""
    if selection in ("largest", "all", "reference"):
        return []
    return list(dict.fromkeys(int(number) for number in selection.split(",")))


def check_sources(num_sources: int, selection: FaceSelection) -> None:
    """Check that a selection names a face by number for each of several sources; one source is for all faces.

    Raises: ValueError.
    """
    num_faces = len(read_numbers(selection))
    if num_sources > 1 and num_faces != num_sources:
        numbers = ",".join(map(str, range(num_sources)))
        raise ValueError(
            f"{num_sources} sources are for as many faces, and {num_faces} are named by number; name {num_sources}, as "
            f"in {numbers}"
        )


def find_largest_face(detector: Detector, image: Image, role: PictureRole) -> Face:
    """Find the largest face of a picture whose landmarks allow an alignment.

    Raises: NoFaceFound naming the picture by its role.
    """
    return largest_face(find_faces(detector, image, role, only_largest=True))


def find_faces(detector: Detector, image: Image, role: PictureRole, *, only_largest: bool = False) -> list[Face]:
    """Find the faces of a picture whose landmarks allow an alignment; the list is never empty.

    Raises: NoFaceFound naming the picture by its role.
    """
    faces = [face for face in detector.detect(image, only_largest=only_largest) if has_extent(face)]
    if not faces:
        raise NoFaceFound(f"no face was found in the {role} picture; use one that shows a face larger and clearer")
    return faces


def box_of(face: Face) -> FaceBox:
    """Return left, top, width, height of a face's box as Python numbers."""
    left, top, width, height = (float(value) for value in face.box)
    return left, top, width, height


def has_extent(face: Face) -> bool:
    """Check that the landmarks are finite and do not coincide, so that they determine an alignment."""
    return bool(np.isfinite(face.landmarks).all() and np.ptp(face.landmarks, axis=0).max() > 1.0)


def find_template(bundle: Bundle, name: str) -> Template:
    try:
        return load_template(name, bundle.description.template_anchor)
    except ValueError as error:
        raise BundleInvalid(f"{bundle.folder}: {error}; export the model again with one of them") from None
