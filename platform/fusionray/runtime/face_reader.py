"""From a picture to what the generator is fed: faces found, sources read, crops cut. All of it runs on a CPU too.

N faces, S crop size. What stands for a source is [L] values or a picture [3,s,s], as the bundle's `source_shape` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import FACE_FUSION
from fusionray.errors import BundleInvalid, NoFaceFound
from fusionray.faces.align import Template, estimate_alignment, load_template, warp_crop
from fusionray.faces.face import Detector, Face, Image, Matrix, largest_face
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.source_encoding import open_source_reader

Faces = Literal["largest", "all"]
Role = Literal["source", "target"]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class CutFaces:
    """The faces of a picture, cut out: `crops` uint8 [N,S,S,3], the map [2,3] that cut each, and each face's box.

    A box is left, top, width, height in picture pixels.
    """

    crops: NDArray[np.uint8]
    matrices: tuple[Matrix, ...]
    boxes: tuple[Box, ...]


class FaceReader:
    """Find, align and read faces as a bundle wants them.

    One call at a time, unless the detector is a `DetectorPool`: a detector keeps state while it works.

    Raises: BundleInvalid if the bundle is of another task, or what reads sources is not what it says;
        ProviderUnavailable.
    """

    def __init__(self, bundle: Bundle, detector: Detector, settings: RuntimeConfig | None = None) -> None:
        bundle.require_task(FACE_FUSION)
        self.detector = detector
        self.size = bundle.description.size
        self.template = find_template(bundle, bundle.description.template)
        self.identity_template = find_template(bundle, bundle.description.identity_template)
        self.sources = open_source_reader(bundle, settings)

    def warm_up(self) -> None:
        """Run detector and encoder once, so that the first request does not pay for lazy allocation."""
        self.detector.detect(np.zeros((self.size, self.size, 3), np.uint8))
        self.sources.read(np.zeros((1, self.sources.size, self.sources.size, 3), np.uint8))

    def detect(self, image: Image, role: Role) -> list[Face]:
        """Find the faces of a picture, at least one.

        Raises: NoFaceFound naming the picture by its role.
        """
        return find_faces(self.detector, image, role)

    def read_source(self, image: Image) -> FloatArray:
        """Read the largest face of a source picture as what stands for it, float32.

        Raises: NoFaceFound naming the source picture.
        """
        return self.read_face(image, largest_face(self.detect(image, "source")))

    def read_face(self, image: Image, face: Face) -> FloatArray:
        """Read one face of a picture as what stands for it, float32."""
        matrix = estimate_alignment(face.landmarks, self.identity_template, self.sources.size)
        source: FloatArray = self.sources.read(warp_crop(image, matrix, self.sources.size)[None])[0]
        return source

    def cut(self, image: Image, faces: Faces = "largest") -> CutFaces:
        """Cut the largest or every face out of a target picture.

        Raises: NoFaceFound naming the target picture.
        """
        found = self.detect(image, "target")
        chosen = found if faces == "all" else [largest_face(found)]
        matrices = tuple(estimate_alignment(face.landmarks, self.template, self.size) for face in chosen)
        crops = np.stack([warp_crop(image, matrix, self.size) for matrix in matrices])
        return CutFaces(crops, matrices, tuple(box_of(face) for face in chosen))


def find_faces(detector: Detector, image: Image, role: Role) -> list[Face]:
    """Find the faces of a picture that a crop can be cut by, at least one.

    Raises: NoFaceFound naming the picture by its role.
    """
    faces = [face for face in detector.detect(image) if has_extent(face)]
    if not faces:
        raise NoFaceFound(f"no face was found in the {role} picture; use one that shows a face larger and clearer")
    return faces


def box_of(face: Face) -> Box:
    left, top, width, height = (float(value) for value in face.box)
    return left, top, width, height


def has_extent(face: Face) -> bool:
    """Tell whether the landmarks are numbers that lie apart, so that a crop can be cut by them."""
    return bool(np.isfinite(face.landmarks).all() and np.ptp(face.landmarks, axis=0).max() > 1.0)


def find_template(bundle: Bundle, name: str) -> Template:
    try:
        return load_template(name)
    except ValueError as error:
        raise BundleInvalid(f"{bundle.folder}: {error}; export the model with one of these") from None
