"""From picture to picture: find the faces, carry the identity over, put the new faces back.

Pictures are uint8 RGB HWC at any size. N faces, S crop size. What stands for a source is [L] values or a picture
[3,s,s], as the bundle's `source_shape` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import Precision
from fusionray.faces.face import Detector, FloatMap, Image, Matrix
from fusionray.faces.mask import soft_box_mask
from fusionray.faces.paste import paste_crop
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser, FusedCrops
from fusionray.runtime.face_reader import Box, CutFaces, FaceReader, Faces
from fusionray.runtime.pixels import FloatArray


@dataclass(frozen=True, eq=False)
class FusedPicture:
    """A finished picture. `boxes` are left, top, width, height of each face that was replaced, in picture pixels."""

    image: Image
    num_faces: int
    boxes: tuple[Box, ...]


class Fuser:
    """Hold the models of a bundle ready and fuse pictures with them. One call at a time, as its reader says.

    `precision` chooses among the generators of the bundle.

    Raises: BundleInvalid if the models are not what the bundle says; ProviderUnavailable.
    """

    def __init__(
        self,
        bundle: Bundle,
        detector: Detector,
        settings: RuntimeConfig | None = None,
        *,
        precision: Precision = "fp32",
    ) -> None:
        self.bundle = bundle
        self.reader = FaceReader(bundle, detector, settings)
        self.crop_fuser = CropFuser(bundle, settings, precision=precision)

    def warm_up(self) -> None:
        """Run every model once, so that the first request does not pay for lazy allocation and kernel choice."""
        self.reader.warm_up()
        self.crop_fuser.warm_up()

    def read_source(self, image: Image) -> FloatArray:
        """Read the largest face of a source picture as what stands for it, float32.

        Raises: NoFaceFound naming the source picture.
        """
        return self.reader.read_source(image)

    def fuse(self, source_image: Image, target_image: Image, faces: Faces = "largest") -> FusedPicture:
        """Give the largest or every face of the target picture the identity of the source picture's largest face.

        Raises: NoFaceFound naming the picture that shows none.
        """
        return self.fuse_source(self.read_source(source_image), target_image, faces)

    def fuse_source(self, source: FloatArray, target_image: Image, faces: Faces = "largest") -> FusedPicture:
        """Give the faces of a picture the identity of a source that was read.

        Raises: NoFaceFound naming the target picture.
        """
        cut = self.reader.cut(target_image, faces)
        fused = self.crop_fuser.fuse(np.repeat(source[None], len(cut.crops), axis=0), cut.crops)
        return put_back(target_image, cut, fused)


def put_back(target_image: Image, cut: CutFaces, fused: FusedCrops) -> FusedPicture:
    """Put fused crops back where they were cut; the rim of a crop never shows."""
    masks = fused.masks * rim(fused.masks.shape[1])
    image = paste_faces(target_image, fused.crops, masks, cut.matrices)
    return FusedPicture(image, len(cut.boxes), cut.boxes)


@lru_cache(maxsize=8)
def rim(size: int) -> FloatMap:
    """Keep the soft box of a crop size: it is the same for every face."""
    mask = soft_box_mask(size)
    mask.flags.writeable = False
    return mask


def paste_faces(
    image: Image, crops_NSS3: NDArray[np.uint8], masks_NSS: FloatArray, matrices: Sequence[Matrix]
) -> Image:
    """Put every crop back through its mask; where all masks are 0 the picture keeps its bytes."""
    for crop, mask, matrix in zip(crops_NSS3, masks_NSS, matrices, strict=True):
        image = paste_crop(image, np.ascontiguousarray(crop), mask, matrix)
    return image
