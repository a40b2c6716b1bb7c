"""Turn a picture into a row of a shard: detect and align the face, crop, check the quality, encode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.picture_input import DecodedPicture
from fusionray.data.prepare.quality import box_around_landmarks, check_face, check_sharpness
from fusionray.data.prepare.skin_region import SkinRegion
from fusionray.data.shards import build_face_row, build_picture_row
from fusionray.errors import ImageRejected, NoFaceFound
from fusionray.faces.align import Template, estimate_alignment, invert_affine, transform_points, warp, warp_crop
from fusionray.faces.face import Detector, Face, Matrix, Plane, largest_face
from fusionray.faces.image_files.decode import encode_image, encode_plane


class RowBuilder(Protocol):
    """Builds the rows of one task."""

    def build(self, picture: DecodedPicture) -> dict[str, Any]:
        """Build the row of a picture.

        Raises:
            ImageRejected: the picture is dropped, with the reason.
        """
        ...


@dataclass(frozen=True, eq=False, slots=True)
class PictureCropper:
    """Builds rows of pictures: the largest square in the middle."""

    config: PrepareConfig

    def build(self, picture: DecodedPicture) -> dict[str, Any]:
        """Build the row of a picture; faces are not detected.

        Raises:
            ImageRejected: "too_small" or "blurred".
        """
        config = self.config
        height, width = picture.image.shape[:2]
        side = min(height, width)
        if side < config.size:
            raise ImageRejected("too_small", f"{width} x {height} px is smaller than size={config.size}")
        top, left = (height - side) // 2, (width - side) // 2
        square = picture.image[top : top + side, left : left + side]
        crop = np.asarray(cv2.resize(square, (config.size, config.size), interpolation=cv2.INTER_AREA), np.uint8)
        check_sharpness(crop, min_sharpness=config.min_sharpness)
        encoded = encode_image(crop, config.image_format, config.quality)
        return build_picture_row(encoded, picture.entry.source, width, height)


@dataclass(frozen=True, eq=False, slots=True)
class FaceCropper:
    """Builds rows of the largest face of each picture."""

    config: PrepareConfig
    template: Template
    detector: Detector
    skin: SkinRegion | None = None

    def build(self, picture: DecodedPicture) -> dict[str, Any]:
        """Build the row of a picture.

        Raises:
            ImageRejected: "no_face", "bad_landmarks", "face_too_small", "not_frontal" or "blurred".
        """
        config = self.config
        faces = self._find(picture)
        if not faces:
            raise NoFaceFound("no face was found")
        face = largest_face(faces)
        check_face(face, min_face_pixels=config.min_face_pixels, max_yaw_asymmetry=config.max_yaw_asymmetry)
        try:
            matrix = estimate_alignment(face.landmarks, self.template, config.size)
        except ValueError as error:
            raise ImageRejected("bad_landmarks", str(error)) from error
        crop = warp_crop(picture.image, matrix, config.size)
        check_sharpness(crop, min_sharpness=config.min_sharpness)
        truth = picture.truth
        region = self.find_region(picture, face, matrix)
        return build_face_row(
            encode_image(crop, config.image_format, config.quality),
            picture.entry.identity,
            transform_points(face.landmarks, matrix),
            picture.entry.source,
            region=None if region is None else encode_plane(region),
            identity_parameters=truth.identity_parameters if truth else None,
            attribute_parameters=truth.attribute_parameters if truth else None,
            view_23=unit_view(matrix, config.size, picture.image.shape[0]) if truth else None,
        )

    def _find(self, picture: DecodedPicture) -> list[Face]:
        if picture.truth is not None and self.config.landmarks == "exact":
            points = picture.truth.landmarks
            return [Face(box_around_landmarks(points), points, 1.0)]
        return self.detector.detect(picture.image, only_largest=True)

    def find_region(self, picture: DecodedPicture, face: Face, matrix_23: Matrix) -> Plane | None:
        """Compute the region of a crop, uint8 [S,S], 255 where it shows the face; None without an outline.

        For synthetic pictures it is the region of the renderer, without what covers the face. For photographs it is the
        skin that the parser sees; without a parser, the inside of the outline that the detector found, whatever is in
        front of it.
        """
        size = self.config.size
        if picture.truth is not None:
            region = warp(picture.truth.region, matrix_23, size, size, border=cv2.BORDER_REPLICATE)
            return np.rint(region.astype(np.float32) * 255).astype(np.uint8)
        if self.skin is not None:
            return self.skin.find(picture.image, self.template, matrix_23, size)
        if face.outline is None:
            return None
        # Coordinates in sixteenths of a pixel, for soft edges.
        corners = np.rint(transform_points(face.outline, matrix_23) * 16).astype(np.int32)
        drawn = np.zeros((size, size), np.uint8)
        return np.asarray(cv2.fillPoly(drawn, [corners], 255, lineType=cv2.LINE_AA, shift=4), np.uint8)


def unit_view(matrix_23: Matrix, crop_size: int, picture_size: int) -> NDArray[np.float32]:
    """Convert an alignment (picture pixels -> crop pixels) to the affine map from crop to picture in unit coordinates.

    Returns float32 [2,3]. The centre of pixel i of S is at (i + 0.5) / S. The renderer takes the map as `view`.
    """
    back = invert_affine(matrix_23)
    linear = back[:, :2] * crop_size / picture_size
    shift = (back[:, 2] + 0.5 - back[:, :2] @ np.array([0.5, 0.5])) / picture_size
    return np.concatenate([linear, shift[:, None]], axis=1).astype(np.float32)
