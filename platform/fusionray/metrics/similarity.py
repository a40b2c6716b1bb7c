"""Similarity of two pictures within a region: SSIM, PSNR, gradient energy, feature distance; one value for each row.

Pictures are RGB in [-1,1]. A region in [0,1] weights the pixels of its row; a row with an empty region gives nan.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

REC_601 = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luminance (ITU-R BT.601)."""


def region_ssim(first_N3HW: Tensor, second_N3HW: Tensor, region_N1HW: Tensor) -> Tensor:
    """Return SSIM of RGB in [0,1], averaged over the region: [N], 1 for equal pictures.

    The window of a pixel is a Gaussian of 11 px (sigma 1.5), so it reaches up to 5 px beyond the region.

    Source: Wang et al. 2004, section III-B, as torchmetrics computes it (pictures mirrored at their edges).
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    _, map_N3HW = structural_similarity_index_measure(
        to_unit(first_N3HW), to_unit(second_N3HW), data_range=1.0, reduction="none", return_full_image=True
    )
    return average_in_region(map_N3HW, region_N1HW)


def region_psnr(first_N3HW: Tensor, second_N3HW: Tensor, region_N1HW: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in dB over the region: [N], inf where the pictures are equal.

    -10 log10(mean squared error of RGB in [0,1]).
    """
    squared_N3HW = (to_unit(first_N3HW) - to_unit(second_N3HW)).square()
    return -10 * average_in_region(squared_N3HW, region_N1HW).log10()


def gradient_energy(image_N3HW: Tensor, region_N1HW: Tensor) -> Tensor:
    """Average the squared forward differences of the luminance in [0,1] over the region: [N], 0 for a flat picture.

    Of one scene, a blurred picture has less than a sharp one, and a noisy picture more.
    """
    luminance_N1HW = torch.einsum("nchw,c->nhw", to_unit(image_N3HW), image_N3HW.new_tensor(REC_601))[:, None]
    # The last row and the last column have no next neighbour.
    here = luminance_N1HW[..., :-1, :-1]
    across, down = luminance_N1HW[..., :-1, 1:] - here, luminance_N1HW[..., 1:, :-1] - here
    return average_in_region(across.square() + down.square(), region_N1HW[..., :-1, :-1])


def feature_distance(first_features: Sequence[Tensor], second_features: Sequence[Tensor]) -> Tensor:
    """Compare the feature maps [N,C,H,W] of two pictures, layer by layer: [N], from 0 (equal) to 4 (opposite).

    Features are normalised to unit length over channels; their squared difference is averaged over positions, then
    over layers.

    Raises: ValueError unless both have the same number of layers, at least one.

    Source: Zhang et al. 2018, "The unreasonable effectiveness of deep features as a perceptual metric", eq. 1 with
    w = 1, averaged over layers where the paper adds them up.
    """
    if not first_features:
        raise ValueError("feature_distance needs the feature maps of at least one layer")
    layers = [
        (F.normalize(first_NCHW, dim=1) - F.normalize(second_NCHW, dim=1)).square().sum(dim=1).mean(dim=(1, 2))
        for first_NCHW, second_NCHW in zip(first_features, second_features, strict=True)
    ]
    return torch.stack(layers).mean(dim=0)


def average_in_region(map_NCHW: Tensor, region_N1HW: Tensor) -> Tensor:
    """Average a map over its channels, and over its pixels weighted by the region: [N]."""
    weighted_N1HW = map_NCHW.mean(dim=1, keepdim=True) * region_N1HW
    return weighted_N1HW.sum(dim=(1, 2, 3)) / region_N1HW.sum(dim=(1, 2, 3))


def to_unit(image: Tensor) -> Tensor:
    """Map [-1,1] to [0,1]."""
    return (image + 1) / 2
