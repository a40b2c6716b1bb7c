"""From picture to picture: find the faces, carry the identity over, put the new faces back.

Pictures are uint8 RGB HWC at any size. Crops are NCHW float32 in the value range that the bundle states.
N faces, S crop size, L length of what stands for a source, E of the embedding that it begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fusionray.errors import BundleInvalid, NoFaceFound
from fusionray.export.bundle import (
    EMBEDDING_LENGTH,
    GENERATOR_NAME,
    IDENTITY_NAME,
    IDENTITY_SIZE,
    Bundle,
    TensorDescription,
)
from fusionray.faces.align import Template, estimate_alignment, load_template, warp_crop
from fusionray.faces.face import Detector, Face, Image, Matrix, largest_face
from fusionray.faces.mask import soft_box_mask
from fusionray.faces.paste import paste_crop
from fusionray.runtime.session import Providers, SessionReport, build_session, describe
from fusionray.runtime.signature import check_models

FloatArray = NDArray[np.float32]
Faces = Literal["largest", "all"]
Role = Literal["source", "target"]

# More faces than this are computed in turns, so that a picture of a crowd does not decide how much memory is needed.
MAX_BATCH = 8


@dataclass(frozen=True, eq=False)
class FusedPicture:
    """A finished picture. `boxes` are left, top, width, height of each face that was replaced, in picture pixels."""

    image: Image
    num_faces: int
    boxes: tuple[tuple[float, float, float, float], ...]


class Fuser:
    """Hold the two models of a bundle ready and fuse pictures with them.

    One call at a time: the detector keeps state while it works.

    Raises: BundleInvalid if the models are not of the kind that this runtime drives; ProviderUnavailable.
    """

    def __init__(
        self,
        bundle: Bundle,
        detector: Detector,
        *,
        providers: Providers = "auto",
        allow_fallback: bool = False,
        intra_op_threads: int | None = None,
    ) -> None:
        self.bundle = bundle
        self.detector = detector
        self.size = bundle.description.size
        self.template = find_template(bundle, bundle.description.template)
        self.identity_template = find_template(bundle, bundle.description.identity_template)
        self.generator, self.identity = (
            build_session(path, providers, allow_fallback=allow_fallback, intra_op_threads=intra_op_threads)
            for path in (bundle.generator_path, bundle.identity_path)
        )
        check_models(bundle, self.generator, self.identity)
        self.crop_range = bundle.tensor(IDENTITY_NAME, "input")
        self.target_range = bundle.tensor(GENERATOR_NAME, "target")
        self.output_range = bundle.tensor(GENERATOR_NAME, "output")
        self.box_mask = soft_box_mask(self.size)

    def describe(self) -> SessionReport:
        """Report what the generator runs on."""
        return describe(self.generator)

    def warm_up(self) -> None:
        """Run every model once, so that the first request does not pay for lazy allocation and kernel choice."""
        self.detector.detect(np.zeros((self.size, self.size, 3), np.uint8))
        self.forward_identity(np.zeros((1, 3, IDENTITY_SIZE, IDENTITY_SIZE), np.float32))
        source = np.full((1, self.bundle.source_length), EMBEDDING_LENGTH**-0.5, np.float32)
        self.forward_generator(source, np.zeros((1, 3, self.size, self.size), np.float32))

    def read_source(self, image: Image) -> FloatArray:
        """Read the largest face of a source picture: [L] float32, of which the first [E] are its unit-length embedding.

        Raises: NoFaceFound naming the source picture.
        """
        face = largest_face(self.detect(image, "source"))
        matrix = estimate_alignment(face.landmarks, self.identity_template, IDENTITY_SIZE)
        crop = warp_crop(image, matrix, IDENTITY_SIZE)
        source: FloatArray = self.forward_identity(normalize_crops([crop], self.crop_range))[0]
        return source

    def fuse(self, source_image: Image, target_image: Image, faces: Faces = "largest") -> FusedPicture:
        """Give the largest or every face of the target picture the identity of the source picture's largest face.

        Raises: NoFaceFound naming the picture that shows none.
        """
        return self.fuse_source(self.read_source(source_image), target_image, faces)

    def fuse_source(self, source_L: FloatArray, target_image: Image, faces: Faces = "largest") -> FusedPicture:
        """Give the faces of a picture the identity of a source that was read.

        Raises: NoFaceFound naming the target picture.
        """
        found = self.detect(target_image, "target")
        chosen = found if faces == "all" else [largest_face(found)]
        matrices = [estimate_alignment(face.landmarks, self.template, self.size) for face in chosen]
        crops = [warp_crop(target_image, matrix, self.size) for matrix in matrices]
        fused_NSS3, mask_NSS = self.fuse_crops(source_L, crops)
        image = paste_faces(target_image, fused_NSS3, mask_NSS * self.box_mask, matrices)
        return FusedPicture(image, len(chosen), tuple(box_of(face) for face in chosen))

    def detect(self, image: Image, role: Role) -> list[Face]:
        """Find the faces of a picture, at least one.

        Raises: NoFaceFound naming the picture by its role.
        """
        faces = [face for face in self.detector.detect(image) if has_extent(face)]
        if not faces:
            raise NoFaceFound(f"no face was found in the {role} picture; use one that shows a face larger and clearer")
        return faces

    def fuse_crops(self, source_L: FloatArray, crops: Sequence[Image]) -> tuple[NDArray[np.uint8], FloatArray]:
        """Fuse aligned crops, in batches: [N,S,S,3] uint8 and the model's masks [N,S,S] in 0..1."""
        outputs, masks = [], []
        for start in range(0, len(crops), MAX_BATCH):
            batch = normalize_crops(crops[start : start + MAX_BATCH], self.target_range)
            output, mask = self.forward_generator(np.repeat(source_L[None], len(batch), axis=0), batch)
            outputs.append(denormalize_crops(output, self.output_range))
            masks.append(np.clip(np.nan_to_num(mask[:, 0]), 0.0, 1.0))
        return np.concatenate(outputs), np.concatenate(masks)

    def forward_identity(self, input_NCHW: FloatArray) -> FloatArray:
        """Run the identity encoder: crops to what stands for sources [N,L]."""
        source: FloatArray
        (source,) = self.identity.run(["source"], {"input": input_NCHW})
        return normalize_source(source)

    def forward_generator(self, source_NL: FloatArray, target_NCHW: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Run the generator: fused crops [N,3,S,S] in the bundle's range and masks [N,1,S,S]."""
        output, mask = self.generator.run(["output", "mask"], {"source": source_NL, "target": target_NCHW})
        return output, mask


def normalize_source(source_NL: FloatArray) -> FloatArray:
    """Give the embedding that a source begins with unit length: not every model's last layer does."""
    embedding = source_NL[:, :EMBEDDING_LENGTH]
    length = np.maximum(np.linalg.norm(embedding, axis=1, keepdims=True), 1e-12)
    return np.concatenate([embedding / length, source_NL[:, EMBEDDING_LENGTH:]], axis=1)


def normalize_crops(crops: Sequence[Image], to: TensorDescription) -> FloatArray:
    """Turn uint8 HWC crops into a batch NCHW float32 in the described range."""
    batch = np.stack(crops).transpose(0, 3, 1, 2).astype(np.float32)
    batch *= np.float32((to.maximum - to.minimum) / 255.0)
    batch += np.float32(to.minimum)
    return np.ascontiguousarray(batch)


def denormalize_crops(batch_NCHW: FloatArray, described: TensorDescription) -> NDArray[np.uint8]:
    """Turn a batch in the described range into uint8 NHWC, rounded; numbers that are not finite become the minimum."""
    scaled = (batch_NCHW - described.minimum) * (255.0 / (described.maximum - described.minimum))
    finite = np.nan_to_num(scaled, nan=0.0, posinf=255.0, neginf=0.0)
    pixels: NDArray[np.uint8] = np.rint(np.clip(finite, 0.0, 255.0)).astype(np.uint8).transpose(0, 2, 3, 1)
    return pixels


def paste_faces(
    image: Image, crops_NSS3: NDArray[np.uint8], masks_NSS: FloatArray, matrices: Sequence[Matrix]
) -> Image:
    """Put every crop back through its mask; where all masks are 0 the picture keeps its bytes."""
    for crop, mask, matrix in zip(crops_NSS3, masks_NSS, matrices, strict=True):
        image = paste_crop(image, np.ascontiguousarray(crop), mask, matrix)
    return image


def box_of(face: Face) -> tuple[float, float, float, float]:
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
