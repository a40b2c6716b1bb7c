"""Fuse whole pictures: detect and crop the faces, run the generator, paste the fused crops.

Pictures are uint8 RGB HWC of any size. N faces, S crop size. An encoded source is [L] values or a picture [3,s,s]:
`source_shape` of the bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import WeightPrecision
from fusionray.faces.align import Template, move_origin, region_under
from fusionray.faces.blending.grain import add_grain, match_sharpness
from fusionray.faces.blending.mask import soft_box_mask
from fusionray.faces.blending.paste import paste_crop
from fusionray.faces.blending.skin import Skin, match_skin
from fusionray.faces.face import Detector, Face, FloatMap, Image, Matrix
from fusionray.runtime.config import PixelBoost, RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser, FusedCrops
from fusionray.runtime.face_preprocessor import (
    FaceBox,
    FaceCrops,
    FacePreprocessor,
    FaceSelection,
    pick_faces,
    search_faces,
)
from fusionray.runtime.head_parser import HeadParser, open_parser
from fusionray.runtime.pixel_boost import join_phases, repeat_sources, split_phases
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.restorer import FaceRestorer


@dataclass(frozen=True, eq=False)
class FusedPicture:
    """A fused picture. `boxes` are left, top, width, height of each replaced face, in picture pixels."""

    image: Image
    num_faces: int
    boxes: tuple[FaceBox, ...]


class Fuser:
    """The loaded models of a bundle, which fuse pictures. One call at a time, unless `detector` is a `DetectorPool`.

    `precision` chooses among the generators of the bundle; `restorer` sharpens what was fused; `skin` is that of the
    fused faces, by default as the bundle says; `pixel_boost` is how many times the model's size they have at most.

    Raises: BundleInvalid if the bundle describes its models wrongly; ProviderUnavailable.
    """

    def __init__(
        self,
        bundle: Bundle,
        detector: Detector,
        settings: RuntimeConfig | None = None,
        *,
        precision: WeightPrecision = "fp32",
        restorer: FaceRestorer | None = None,
        skin: Skin | None = None,
        pixel_boost: PixelBoost = 1,
    ) -> None:
        self.bundle = bundle
        self.skin = skin or bundle.description.skin
        self.restorer = restorer
        self.pixel_boost = pixel_boost
        self.parser = open_parser(bundle, settings)
        self.preprocessor = FacePreprocessor(bundle, detector, settings)
        self.crop_fuser = CropFuser(bundle, settings, precision=precision)

    def warm_up(self) -> None:
        """Run every model once, so that lazy allocation and kernel choice do not slow the first request."""
        self.preprocessor.warm_up()
        self.crop_fuser.warm_up()

    def encode_source(self, image: Image) -> FloatArray:
        """Encode the largest face of a source picture, float32; one encoded source serves any number of targets.

        Raises: NoFaceFound naming the source picture.
        """
        return self.preprocessor.encode_source(image)

    def fuse(
        self, source_image: Image, target_image: Image, faces: FaceSelection = "largest", strength: float = 1.0
    ) -> FusedPicture:
        """Give the chosen faces of the target picture the identity of the source picture's largest face.

        Raises: NoFaceFound naming the picture that shows none; ImageRejected ("no_such_face").
        """
        return self.fuse_source(self.encode_source(source_image), target_image, faces, strength)

    def fuse_source(
        self, source: FloatArray, target_image: Image, faces: FaceSelection = "largest", strength: float = 1.0
    ) -> FusedPicture:
        """Give the chosen faces of the target picture the identity of an encoded source.

        Raises: NoFaceFound naming the target picture; ImageRejected ("no_such_face").
        """
        chosen = pick_faces(search_faces(self.preprocessor.detector, target_image, faces), faces)
        return self.fuse_chosen([source], target_image, chosen, strength)

    def fuse_chosen(
        self, sources: Sequence[FloatArray], target_image: Image, chosen: Sequence[Face], strength: float = 1.0
    ) -> FusedPicture:
        """Give faces that were found in a target picture the identities of encoded sources: one, or one for each face.

        Raises: ValueError for another number of sources.
        """
        target = self.preprocessor.cut_crops(target_image, chosen, self.pixel_boost)
        repeated = repeat_sources(stack_sources(sources, len(chosen)), target.factor)
        fused = self.crop_fuser.fuse(repeated, split_phases(target.crops, target.factor))
        return self.paste(target_image.copy(), target, join_phases(fused, target.factor), strength)

    def paste(self, target_image: Image, target: FaceCrops, fused: FusedCrops, strength: float = 1.0) -> FusedPicture:
        """Paste fused crops where the target crops were cut, into `target_image` itself, and return it."""
        return paste_fused(
            target_image,
            target,
            fused,
            strength,
            skin=self.skin,
            restorer=self.restorer,
            parser=self.parser,
            template=self.preprocessor.template,
        )


def stack_sources(sources: Sequence[FloatArray], num_faces: int) -> FloatArray:
    """Return an encoded source for each face, [N,...]: the same one for all, or the first for the first and so on.

    Raises: ValueError if their numbers differ.
    """
    if len(sources) == 1:
        return np.repeat(sources[0][None], num_faces, axis=0)
    if len(sources) != num_faces:
        raise ValueError(f"{len(sources)} sources for {num_faces} faces; give one, or one for each face")
    return np.stack(sources)


def paste_fused(
    target_image: Image,
    target: FaceCrops,
    fused: FusedCrops,
    strength: float = 1.0,
    *,
    skin: Skin = "source",
    restorer: FaceRestorer | None = None,
    parser: HeadParser | None = None,
    template: Template | None = None,
) -> FusedPicture:
    """Paste fused crops where the target crops were cut, into `target_image` itself, and return it.

    Masks fade out, so the edge of a crop never shows; where all masks are 0, the picture keeps its bytes. `strength` is
    the share of the fused face in the blend, 0 (the target as it is) to 1; `skin` says whose colours it has. If the
    source's, a `parser` carries them over the head, of which other pixels change then, too. A `restorer` sharpens what
    was pasted. Both need the `template` of the crops.
    """
    shown = fused.masks * edge_mask(fused.masks.shape[1])
    masks = shown * np.float32(strength)
    rows = zip(fused.crops, target.crops, shown, target.matrices, strict=True)
    faces = [(finish_crop(crop, own, mask, skin), own, mask, matrix) for crop, own, mask, matrix in rows]
    before = [cut_copy(target_image, matrix, len(mask)) for _, _, mask, matrix in faces]
    if parser is not None and skin == "source":
        assert template is not None
        parser.carry_skin(target_image, template, faces, strength)
    for (finished, _, _, matrix), mask in zip(faces, masks, strict=True):
        paste_crop(target_image, finished, mask, matrix)
    if restorer is not None:
        assert template is not None
        restorer.restore(target_image, template, target.matrices, masks)
    for (region, left, top), mask, matrix in zip(before, masks, target.matrices, strict=True):
        height, width = region.shape[:2]
        pasted = target_image[top : top + height, left : left + width]
        add_grain(pasted, region, mask, move_origin(matrix, left, top))
    return FusedPicture(target_image, len(target.boxes), target.boxes)


def finish_crop(fused: Image, target: Image, mask: FloatMap, skin: Skin) -> Image:
    """Give a fused crop the sharpness of the target's, and the skin that is asked for."""
    return match_skin(match_sharpness(np.ascontiguousarray(fused), target, mask), target, mask, skin)


def cut_copy(image: Image, matrix: Matrix, size: int) -> tuple[Image, int, int]:
    """Copy the pixels of a picture under a crop; return them with their left and top."""
    left, top, right, bottom = region_under(matrix, size, size, image)
    return image[top : max(top, bottom), left : max(left, right)].copy(), left, top


@lru_cache(maxsize=8)
def edge_mask(size: int) -> FloatMap:
    """Return the soft box mask of a crop size, cached and read-only, because it is the same for every face."""
    mask = soft_box_mask(size)
    mask.flags.writeable = False
    return mask
