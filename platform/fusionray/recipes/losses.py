"""Losses as pure functions of tensors, differentiable in all inputs unless a docstring says otherwise.

Shape suffixes: N batch, C channels, H rows, W columns, E embedding length, K classes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionray.nets.discriminator import DiscriminatorOutput


def adversarial_generator_loss(fake: DiscriminatorOutput) -> Tensor:
    """Non-saturating generator loss softplus(-logit), averaged over patches and scales; scalar."""
    return torch.stack([F.softplus(-logits.float()).mean() for logits in fake.logits]).mean()


def adversarial_discriminator_loss(real: DiscriminatorOutput, fake: DiscriminatorOutput) -> Tensor:
    """Discriminator loss softplus(-real) + softplus(fake), averaged over patches and scales; ln 4 = 1.386 is chance."""
    terms = [
        F.softplus(-real_logits.float()).mean() + F.softplus(fake_logits.float()).mean()
        for real_logits, fake_logits in zip(real.logits, fake.logits, strict=True)
    ]
    return torch.stack(terms).mean()


def gradient_penalty(real: DiscriminatorOutput, image_NCHW: Tensor) -> Tensor:
    """R1: squared gradient of a logit with respect to the real picture, averaged over logits and batch; scalar.

    Gamma is published for one logit a picture. Here each of the M logits of a picture is such a discriminator, of a
    patch at one of S scales with P logits each (M = sum of P). The adversarial loss averages over scales and patches,
    and so must the penalty: it is mean_S m, where m is the mean of |g|^2 over the patches of a scale and g the gradient
    of one logit. One backward pass, through the mean logit D, gives that mean if gradients of different logits are
    orthogonal and m = c P, since both m and P fall by 4 from one scale to the next:

        |grad D|^2 = sum_S m / (S^2 P) = c / S        mean_S m = sum_S c P / S = c M / S = M |grad D|^2

    Without the factor M the penalty vanishes as patches become many; where overlapping patches agree it is stronger.

    Source: Mescheder et al. 2018, section 4.1. LaMa (Suvorov et al. 2021, configs/training/lama-fourier.yaml) penalises
    its 361 patches at 256 px alike: 0.001 |sum g|^2 = 130 |grad D|^2; StyleGAN3's gamma of 2 is 361 |grad D|^2 here.
    """
    score = torch.stack([logits.float().mean(dim=(1, 2, 3)).sum() for logits in real.logits]).mean()
    (gradient,) = torch.autograd.grad(score, image_NCHW, create_graph=True)
    num_logits = sum(logits[0].numel() for logits in real.logits)
    return gradient.float().square().sum(dim=(1, 2, 3)).mean() * num_logits


def identity_loss(fused_NE: Tensor, source_NE: Tensor) -> Tensor:
    """Return 1 - cosine similarity of the unit-length embeddings of fused face and source; scalar."""
    return (1 - (fused_NE * source_NE).sum(dim=1)).mean()


def masked_l1(output_NCHW: Tensor, reference_NCHW: Tensor, chosen_N: Tensor) -> Tensor:
    """L1 over the chosen rows, divided by the whole batch size, so that micro-batches and ranks add up; scalar."""
    per_row_N = (output_NCHW - reference_NCHW).abs().mean(dim=(1, 2, 3))
    return (per_row_N * chosen_N.to(per_row_N.dtype)).mean()


def structure_loss(output_NCHW: Tensor, reference_NCHW: Tensor, region_N1HW: Tensor, chosen_N: Tensor) -> Tensor:
    """Return 1 - SSIM of pictures in [-1,1] over the region of each chosen row; divided as in `masked_l1`; scalar.

    L1 favours the average of all plausible edges; SSIM penalises its lack of contrast. The window is a box of 7 px at
    every second pixel. The usual Gaussian of 11 px at every pixel costs forty times as much on a CPU and has nearly
    the same gradient.

    Source: Wang et al. 2004, equation 13; Zhao et al. 2017 for its use as a loss.
    """
    side, floor_mean, floor_variance = 7, 0.01**2, 0.03**2
    first, second = (output_NCHW.float() + 1) / 2, (reference_NCHW.float() + 1) / 2
    moments = torch.cat([first, second, first * first, second * second, first * second])
    averaged = F.avg_pool2d(moments, side, stride=2, padding=side // 2, count_include_pad=False)
    mean_1, mean_2, square_1, square_2, product = averaged.chunk(5)
    variances = square_1 - mean_1.square() + square_2 - mean_2.square()
    covariance = product - mean_1 * mean_2
    luminance = (2 * mean_1 * mean_2 + floor_mean) / (mean_1.square() + mean_2.square() + floor_mean)
    contrast = (2 * covariance + floor_variance) / (variances + floor_variance)
    dissimilarity = (1 - luminance * contrast).mean(dim=1, keepdim=True)
    region = region_N1HW[:, :, ::2, ::2]  # at the centres of the boxes
    # The clamp makes the loss of an empty region 0.
    per_row_N = (dissimilarity * region).sum(dim=(1, 2, 3)) / region.sum(dim=(1, 2, 3)).clamp_min(1)
    return (per_row_N * chosen_N.to(per_row_N.dtype)).mean()


def mask_loss(mask_N1HW: Tensor, region_N1HW: Tensor) -> Tensor:
    """Cross-entropy between a mask and the region that it should cover, both in [0,1]; scalar.

    Unlike the gradient of L1, its gradient does not vanish where the mask is confidently wrong. A mask that leaves half
    of the target's face in the picture would hide the generator's output for a long time.
    """
    mask, region = mask_N1HW.float(), region_N1HW.float()
    floor = 1e-4  # bounds the loss of a wrong pixel
    covered = mask.clamp_min(floor).log()
    free = (1 - mask).clamp_min(floor).log()
    return -(region * covered + (1 - region) * free).mean()


def feature_matching_loss(fake: DiscriminatorOutput, real: DiscriminatorOutput, first_layer: int) -> Tensor:
    """L1 between discriminator features of fused and reference pictures, from layer `first_layer` on; scalar.

    Shallow layers transfer the reference's pixels including its identity; deep layers its layout and light. The
    reference's features get no gradient.

    Source: SimSwap (Chen et al. 2020), section 3.3 (weak feature matching).
    """
    terms = [
        # Sum and divide: the gradient of `mean` is a tensor in NCHW layout whatever layout the features have, while
        # that of `sum` is an expanded scalar.
        (fake_map.float() - real_map.detach().float()).abs().sum() / fake_map.numel()
        for fake_maps, real_maps in zip(fake.features, real.features, strict=True)
        for fake_map, real_map in zip(fake_maps[first_layer:], real_maps[first_layer:], strict=True)
    ]
    return torch.stack(terms).mean()


class ArcFaceHead(nn.Module):
    """Classification head with an additive angular margin.

    logit_k = s cos(theta_k + m [k = label]), theta_k: the angle between embedding and class centre.

    Source: ArcFace (Deng et al. 2019), section 2, with the monotonic extension below cos(pi - m).
    """

    def __init__(self, num_classes: int, embedding_length: int, scale: float, margin: float) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(num_classes, embedding_length) * 0.01)
        self.scale = scale
        self.margin = margin

    def forward(self, embedding_NE: Tensor, label_N: Tensor) -> Tensor:
        """Return logits [N,K]; `embedding_NE` of unit length, `label_N` int64."""
        # In float32: bf16 has three significant digits, so its error times s = 64 would exceed the margin's effect.
        with torch.autocast(embedding_NE.device.type, enabled=False):
            cosine_NK = F.linear(embedding_NE.float(), F.normalize(self.centres.float()))
        cosine_N1 = cosine_NK.gather(1, label_N[:, None])
        # Keep the square root's derivative finite at cos = +-1.
        sine_N1 = (1 - cosine_N1.square()).clamp_min(1e-7).sqrt()
        moved_N1 = cosine_N1 * math.cos(self.margin) - sine_N1 * math.sin(self.margin)
        # Beyond theta + m = pi the cosine rises again and would reward the wrong direction.
        straight_N1 = cosine_N1 - math.sin(self.margin) * self.margin
        moved_N1 = torch.where(cosine_N1 > math.cos(math.pi - self.margin), moved_N1, straight_N1)
        return self.scale * cosine_NK.scatter(1, label_N[:, None], moved_N1)
