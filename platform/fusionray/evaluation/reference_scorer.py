"""Score a model of pictures against the reference output of its family: SSIM, PSNR and L1.

The baseline is to return the first input unchanged; its scores have the suffix `_first`.

Shape suffixes: N draws, S side in pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionray.metrics.fusion_metrics import EIGHT_BITS_PSNR
from fusionray.metrics.similarity import region_psnr, region_ssim
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.family import RecipeFamily

# Levels of 0..255 in a difference of 1 between pictures in [-1, 1].
LEVELS = 127.5


class ReferenceScorer:
    """Compares outputs with the family's reference; a `PictureScorer`."""

    ratios: Mapping[str, tuple[str, str]] = {}
    ranking_name = "SSIM to the reference (ssim)"

    def __init__(self, family: RecipeFamily[Any]) -> None:
        self.family = family
        self.roles = tuple(f"input {role + 1}" for role in range(family.num_roles))

    def score(self, output: Tensor, pictures: Sequence[Tensor]) -> dict[str, Tensor]:
        """Score outputs, and the first inputs as outputs, float32 [N,3,S,S] in [-1,1]: float32 [N] by name.

        Raises: ConfigInvalid if the family has no reference.
        """
        reference = self.reference(pictures)
        return {
            **compare_pictures(output, reference),
            **{f"{name}_first": values for name, values in compare_pictures(pictures[0], reference).items()},
        }

    def rank(self, scores: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the SSIM to the reference [N]."""
        return scores["ssim"]

    def reference(self, pictures: Sequence[Tensor]) -> Tensor:
        """Return the reference output, rounded to 8 bits as the model's output is.

        Raises: ConfigInvalid if the family has none.
        """
        return to_float(to_uint8(self.family.reference(pictures)))


def compare_pictures(output: Tensor, reference: Tensor) -> dict[str, Tensor]:
    """Compare outputs with references, [N,3,S,S] in [-1,1]: `ssim`, `psnr` and `l1`, float32 [N].

    `ssim`: at most 1. `psnr`: dB, at most `EIGHT_BITS_PSNR`, which equal pictures get. `l1`: mean absolute difference
    in levels of 0..255.
    """
    everywhere = torch.ones_like(output[:, :1])
    return {
        "ssim": region_ssim(output, reference, everywhere),
        "psnr": region_psnr(output, reference, everywhere).clamp(max=EIGHT_BITS_PSNR),
        "l1": (output - reference).abs().mean(dim=(1, 2, 3)) * LEVELS,
    }
