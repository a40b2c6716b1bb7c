"""Run the face parser of a bundle: where is the skin of a head, of which a fusion changes the middle alone?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import PARSER_NAME, TensorDescription
from fusionray.errors import BundleInvalid
from fusionray.faces.align import Template, compose, load_template, template_to_template, warp_crop
from fusionray.faces.blending.head_skin import carry_skin
from fusionray.faces.blending.skin import find_shift, to_lab
from fusionray.faces.face import FloatMap, Image, Matrix
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.factory import open_engine
from fusionray.runtime.pixels import normalize_crops

SKIN_PARTS = ("face", "ears", "neck")


class HeadParser:
    """The loaded face parser of a bundle. Thread-safe.

    Raises: BundleInvalid if it has none, knows no skin, or is no such model; ProviderUnavailable.
    """

    def __init__(self, bundle: Bundle, settings: RuntimeConfig | None = None) -> None:
        described = bundle.description.parser
        where = f"{bundle.folder}/{PARSER_NAME}"
        if described is None or not set(described.parts) & set(SKIN_PARTS):
            raise BundleInvalid(f"{where}: the bundle has no parser of skin; export it with parser=RUN")
        self.size = described.size
        try:
            self.template: Template = load_template(described.template)
        except ValueError:
            raise BundleInvalid(f"{where}: its template {described.template} is unknown") from None
        self.skin = [number for number, part in enumerate(described.parts) if part in SKIN_PARTS]
        digest = bundle.description.files[PARSER_NAME]
        self.engine = open_engine(bundle.parser_path, settings, digest=digest)
        if set(self.engine.inputs) != {"input"} or "parts" not in self.engine.outputs:
            raise BundleInvalid(f"{where}: has not the input 'input' and the output 'parts'; export the bundle again")
        shape = ("N", 3, self.size, self.size)
        self.tensor = TensorDescription(meaning="picture", shape=shape, minimum=-1.0, maximum=1.0)

    def find_skin(self, head: Image) -> FloatMap:
        """Return the share of skin [S,S] in a crop of a head, uint8 RGB [S,S,3] in the template of the parser."""
        (parts,) = self.engine.run(["parts"], {"input": normalize_crops(head[None], self.tensor)})
        return np.asarray(parts[0, self.skin].sum(axis=0), np.float32)

    def to_head(self, template: Template, size: int, matrix: Matrix) -> Matrix:
        """Return the map to a crop of the head, from that to a crop of `size` px in another template."""
        return compose(template_to_template(template, size, self.template, self.size), matrix)

    def carry_skin(
        self,
        image: Image,
        template: Template,
        faces: Iterable[tuple[Image, Image, FloatMap, Matrix]],
        strength: float = 1.0,
    ) -> None:
        """Give heads of a picture the skin of their fused faces, in place, before those are pasted.

        `faces`: for each the crop after and before the fusion, its mask, and the map from the picture to it.
        `strength`: the share of the fused colours, as of the fused faces.
        """
        for fused, target, mask, matrix in faces:
            shift = find_shift(to_lab(fused), to_lab(target), mask, to_target=False)
            to_head = self.to_head(template, len(mask), matrix)
            skin = self.find_skin(warp_crop(image, to_head, self.size))
            carry_skin(image, shift, skin, to_head, strength)


def open_parser(bundle: Bundle, settings: RuntimeConfig | None = None) -> HeadParser | None:
    """Load the face parser of a bundle; None if it has none.

    Raises: BundleInvalid, ProviderUnavailable.
    """
    return HeadParser(bundle, settings) if bundle.description.parser is not None else None
