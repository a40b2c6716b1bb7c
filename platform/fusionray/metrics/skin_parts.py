"""Where crops show the skin of the face, and where other skin: of rendered people exactly, of photographs by a parser.

Shape suffixes: N pairs, S crop size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionray.data.synthetic import PARTS, render_parts
from fusionray.nets.pixels import elliptic_region
from fusionray.types import PairBatch

Mask = NDArray[np.bool_]

FACE, OTHERS = ("face",), ("neck", "ears")
# A pixel counts if skin covers this share of it.
COVERED = 0.9
# Where the usual region of a face has fallen to this value lies, on average, the outline of the face mesh (looked at on
# 28 photographs of people from the front, in arcface_128).
OUTLINE = 0.86


@dataclass(frozen=True, eq=False)
class SkinParts:
    """Skin of the `face` and skin `around` it (forehead, ears, neck), bool [S,S] each, apart from one another."""

    face: Mask
    around: Mask


def find_skin_parts(batch: PairBatch) -> list[SkinParts] | None:
    """Return the skin parts of each pair of a batch; None if nothing tells them.

    Of rendered people: face, and neck with ears, where target and true fusion both show them. Of photographs,
    `batch.region` must be all visible skin of the target, see `part_region`.
    """
    size = batch.target.shape[-1]
    if batch.truth is not None:
        truth = batch.truth
        shown = render_parts(truth.target_identity, truth.target_attributes, size, truth.view)
        fused = render_parts(truth.source_identity, truth.target_attributes, size, truth.view)
        both = torch.minimum(shown, fused)
        return split(*(both[:, [PARTS.index(part) for part in parts]].sum(dim=1) for parts in (FACE, OTHERS)))
    return None if batch.region is None else part_region(batch.region)


def part_region(region_N1SS: Tensor) -> list[SkinParts]:
    """Part all visible skin of aligned faces, uint8 [N,1,S,S]: what lies within the usual outline of a face, and the
    rest.
    """
    skin = region_N1SS[:, 0] / 255
    inside = elliptic_region(region_N1SS)[:, 0] > OUTLINE
    return split(skin * inside, skin * ~inside)


def split(face_NSS: Tensor, around_NSS: Tensor) -> list[SkinParts]:
    """Return the parts of each row from the shares of its pixels that are skin."""
    face, around = ((share > COVERED).cpu().numpy() for share in (face_NSS, around_NSS))
    return [SkinParts(*each) for each in zip(face, around, strict=True)]
