"""The region of a photograph's crop: all visible skin, as the face parser of a bundle sees it."""

from __future__ import annotations

import cv2
import numpy as np

from fusionray.bundle.bundle import read_bundle
from fusionray.faces.align import Template, template_to_template, warp_crop
from fusionray.faces.blending.head_skin import find_skin
from fusionray.faces.face import FloatMap, Image, Matrix, Plane
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.head_parser import HeadParser

# Share of skin from which a pixel counts as skin.
HALF = 0.5


class SkinRegion:
    """Finds the skin of heads with the parser of a bundle, on one thread.

    Raises: BundleInvalid if it has none.
    """

    def __init__(self, location: str) -> None:
        self.parser = HeadParser(read_bundle(location), RuntimeConfig(providers=(CPU,), threads=1))

    def find(self, image: Image, template: Template, matrix_23: Matrix, size: int) -> Plane:
        """Return the share of skin in a crop, uint8 [S,S], 255 where it shows nothing else.

        `matrix_23` maps the picture uint8 RGB [H,W,3] to the crop of `size` px in `template`.
        """
        head = warp_crop(image, self.parser.to_head(template, size, matrix_23), self.parser.size)
        skin = fill_holes(find_skin(head, self.parser.find_skin(head)))
        from_crop = template_to_template(template, size, self.parser.template, self.parser.size)
        in_crop = cv2.warpAffine(skin, from_crop, (size, size), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
        return np.asarray(np.rint(np.clip(in_crop, 0, 1) * 255), np.uint8)


def fill_holes(skin_SS: FloatMap) -> FloatMap:
    """Count what skin encloses as skin: eyes, brows and lips, which a parser doubts if they are dark.

    What is in front of a face reaches beyond its skin: hair, hands, and glasses by their arms.
    """
    other = (skin_SS < HALF).astype(np.uint8)
    # Of four neighbours, so that a gap across a corner opens no hole.
    _, numbers = cv2.connectedComponents(other, connectivity=4)
    at_border = np.concatenate([numbers[0], numbers[-1], numbers[:, 0], numbers[:, -1]])
    hole = (other > 0) & ~np.isin(numbers, at_border)
    # The skin around a hole fades towards it.
    near = cv2.dilate(hole.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    return np.where(hole | (near & (other == 0)), np.float32(1), skin_SS)
