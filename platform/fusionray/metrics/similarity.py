"""How alike two pictures are where it matters, one value a row.

Pictures are RGB in [-1,1]. A region in [0,1] weighs the pixels of its row; a row whose region is empty has nothing to
compare and gives nan, which a mean over the rows does not hide.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

REC_601 = (0.299, 0.587, 0.114)
"""What red, green and blue add to the luminance."""


def region_ssim(first_N3HW: Tensor, second_N3HW: Tensor, region_N1HW: Tensor) -> Tensor:
    """Measure the structural similarity of RGB in [0,1], averaged over the region: [N], 1 for equal pictures.

    Around each pixel it looks through a Gaussian of 11 px (sigma 1.5), so up to 5 px beyond the region.

    Source: Wang et al. 2004, section III-B, as torchmetrics computes it (pictures mirrored at their edges).
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    _, map_N3HW = structural_similarity_index_measure(
        to_unit(first_N3HW), to_unit(second_N3HW), data_range=1.0, reduction="none", return_full_image=True
    )
    return average_in_region(map_N3HW, region_N1HW)


def region_psnr(first_N3HW: Tensor, second_N3HW: Tensor, region_N1HW: Tensor) -> Tensor:
    """Measure the peak signal-to-noise ratio in dB over the region: [N], inf where the pictures are equal.

    -10 log10(mean squared error of RGB in [0,1]).
    """
    squared_N3HW = (to_unit(first_N3HW) - to_unit(second_N3HW)).square()
    return -10 * average_in_region(squared_N3HW, region_N1HW).log10()


def gradient_energy(image_N3HW: Tensor, region_N1HW: Tensor) -> Tensor:
    """Average the squared forward differences of the luminance in [0,1], across and down: [N], 0 for a flat picture.

    A blurred picture has less of it than a sharp one of the same scene, a noisy one more.
    """
    luminance_N1HW = torch.einsum("nchw,c->nhw", to_unit(image_N3HW), image_N3HW.new_tensor(REC_601))[:, None]
    # The last row and the last column have no neighbour ahead of them.
    here = luminance_N1HW[..., :-1, :-1]
    across, down = luminance_N1HW[..., :-1, 1:] - here, luminance_N1HW[..., 1:, :-1] - here
    return average_in_region(across.square() + down.square(), region_N1HW[..., :-1, :-1])


def feature_distance(first_features: Sequence[Tensor], second_features: Sequence[Tensor]) -> Tensor:
    """Compare the feature maps [N,C,H,W] of two pictures, layer by layer: [N], from 0 (alike) to 4 (opposite).

    Features are scaled to unit length over the channels of each place; their squared difference is averaged over
    places, then over layers.

    Raises: ValueError unless both have the same number of layers, at least one.

    Source: Zhang et al. 2018, "The unreasonable effectiveness of deep features as a perceptual metric", eq. 1 with
    w = 1, averaged over layers where the paper adds them up.
    """
    if not first_features:
        raise ValueError("feature distance needs the maps of at least one layer")
    layers = [
        (F.normalize(first_NCHW, dim=1) - F.normalize(second_NCHW, dim=1)).square().sum(dim=1).mean(dim=(1, 2))
        for first_NCHW, second_NCHW in zip(first_features, second_features, strict=True)
    ]
    return torch.stack(layers).mean(dim=0)


def average_in_region(map_NCHW: Tensor, region_N1HW: Tensor) -> Tensor:
    """Average a map over its channels, and over its pixels as the region weighs them: [N]."""
    weighted_N1HW = map_NCHW.mean(dim=1, keepdim=True) * region_N1HW
    return weighted_N1HW.sum(dim=(1, 2, 3)) / region_N1HW.sum(dim=(1, 2, 3))


def to_unit(image: Tensor) -> Tensor:
    """Map [-1,1] to [0,1]."""
    return (image + 1) / 2
