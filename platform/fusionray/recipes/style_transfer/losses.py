"""Losses of style transfer: content and style in the feature maps of a perceptual network, and contrast of styles.

All are relative to the size of what they compare with, so that their weights do not depend on the perceptual network.

Shape suffixes: N batch, C channels, H rows, W columns, L style length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fusionray.metrics.similarity import REC_601

# Of what a loss is relative to: a flat picture has features of nearly no size.
FLOOR = 1e-4
FLOOR_VARIANCE = 1e-6


def content_loss(output_maps: Sequence[Tensor], content_maps: Sequence[Tensor]) -> Tensor:
    """Squared difference of normalised feature maps over that of unrelated ones (2), averaged over layers: [N].

    Each channel of a picture has mean 0 and deviation 1 here: what is compared is where features are, not how strong,
    because that is style. 0 for equal pictures, about 1 for unrelated ones.

    Source: Huang and Belongie 2017, equation 12, with normalised features as in Park and Lee 2019 (SANet), equation 3.
    """
    terms = [
        (standardise(output_NCHW) - standardise(content_NCHW)).square().mean(dim=(1, 2, 3)) / 2
        for output_NCHW, content_NCHW in zip(output_maps, content_maps, strict=True)
    ]
    return torch.stack(terms).mean(dim=0)


def standardise(features_NCHW: Tensor) -> Tensor:
    """Give each channel of each picture mean 0 and deviation 1, float32; a flat channel stays 0."""
    features = features_NCHW.float()
    centred = features - features.mean(dim=(2, 3), keepdim=True)
    variance = centred.square().mean(dim=(2, 3), keepdim=True)
    # A channel that is nearly dead would be all noise.
    floor = FLOOR * features.detach().square().mean(dim=(1, 2, 3), keepdim=True) + 1e-8
    return centred * torch.rsqrt(variance + floor)


def style_loss(output_maps: Sequence[Tensor], style_maps: Sequence[Tensor]) -> Tensor:
    """Compare mean, deviation and correlations of the channels of each feature map, averaged over layers: [N].

    Each is a squared difference over the sum of both squares: 0 for equal statistics, 1 for unrelated ones, also for an
    output without features. A dark style counts as much as a bright one.

    Source: Huang and Belongie 2017, equation 13 (means and deviations); Gatys et al. 2016, equations 3 to 5
    (correlations).
    """
    terms = [
        compare_statistics(output_NCHW, style_NCHW)
        for output_NCHW, style_NCHW in zip(output_maps, style_maps, strict=True)
    ]
    return torch.stack(terms).mean(dim=0)


def compare_statistics(output_NCHW: Tensor, style_NCHW: Tensor) -> Tensor:
    """Return the style loss [N] of one feature map."""
    pairs = zip(correlate(output_NCHW), correlate(style_NCHW), strict=True)
    return torch.stack([relative_distance(output, style) for output, style in pairs]).mean(dim=0)


def correlate(features_NCHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean [N,C], deviation [N,C] and covariance [N,C,C] of the channels, float32."""
    # In float32: sums of thousands of products have no room in half precision.
    with torch.autocast(features_NCHW.device.type, enabled=False):
        flat_NCP = features_NCHW.float().flatten(2)
        mean_NC = flat_NCP.mean(dim=2)
        products_NCC = flat_NCP @ flat_NCP.transpose(1, 2) / flat_NCP.shape[2]
        covariance_NCC = products_NCC - mean_NC[:, :, None] * mean_NC[:, None]
        deviation_NC = (covariance_NCC.diagonal(dim1=1, dim2=2).clamp_min(0) + FLOOR_VARIANCE).sqrt()
        return mean_NC, deviation_NC, covariance_NCC


def relative_distance(output: Tensor, style: Tensor) -> Tensor:
    """Return the squared difference of rows over the sum of their squares, which gets no gradient: [N]."""
    output, style = output.flatten(1), style.flatten(1)
    size = (output.detach().square() + style.square()).sum(dim=1)
    return (output - style).square().sum(dim=1) / (size + FLOOR_VARIANCE)


def contrast_loss(output_NL: Tensor, style_NL: Tensor) -> Tensor:
    """Style-signal contrast: distance of an output's style to its own style over that to the batch's others; scalar.

    Source: MicroAST (Wang et al. 2023), equation 9; the sum over others is a mean here, so that the batch size does not
    change its size. A batch of one picture has no others and gives 0.
    """
    count = len(style_NL)
    if count < 2:
        return output_NL.sum() * 0
    scale = style_NL.detach().square().mean(dim=1).mean() + FLOOR
    apart_NM = (output_NL[:, None] - style_NL[None]).square().mean(dim=2) / scale
    own_N = apart_NM.diagonal()
    others_N = (apart_NM.sum(dim=1) - own_N) / (count - 1)
    return (own_N / (others_N + FLOOR)).mean()


def structure_loss(output_N3HW: Tensor, content_N3HW: Tensor) -> Tensor:
    """Return 1 - SSIM of the luminance without its luminance term: [N], from 0 (equal structure) to 2.

    The style may make a region lighter or darker, but edges must stay where they are. The window is a box of 7 px.

    Source: Wang et al. 2004, equation 13 without the first factor.
    """
    side, floor_variance = 7, 0.03**2
    first, second = (luminance(picture) for picture in (output_N3HW, content_N3HW))
    moments = torch.cat([first, second, first * first, second * second, first * second], dim=1)
    averaged = F.avg_pool2d(moments, side, stride=2)
    mean_1, mean_2, square_1, square_2, product = averaged.chunk(5, dim=1)
    variances = square_1 - mean_1.square() + square_2 - mean_2.square()
    covariance = product - mean_1 * mean_2
    similarity: Tensor = (2 * covariance + floor_variance) / (variances + floor_variance)
    return 1 - similarity.mean(dim=(1, 2, 3))


def luminance(picture_N3HW: Tensor) -> Tensor:
    """Return the luminance of pictures in [-1,1]: [N,1,H,W] in [0,1], float32."""
    red, green, blue = ((picture_N3HW.float() + 1) / 2).chunk(3, dim=1)
    weighted: Tensor = REC_601[0] * red + REC_601[1] * green + REC_601[2] * blue
    return weighted
