"""What a fusion should look like: the rendered true fusion of synthetic faces, and where a face lies.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fusionray.data import synthetic
from fusionray.types import PairBatch


def render_truth(batch: PairBatch, oversampling: int = 1) -> tuple[Tensor, Tensor]:
    """Render the source person with the target's attributes in the target's crop: [N,3,S,S] in [-1,1], region [0,1].

    Crops are reduced from larger pictures, and each of their pixels is an average; `oversampling` renders the truth
    that many times as large and averages too, so that both are equally sharp. It costs its square in time.
    """
    assert batch.truth is not None
    truth = batch.truth
    size = batch.target.shape[-1] * oversampling
    image, region = synthetic.render_with_mask(truth.source_identity, truth.target_attributes, size, truth.view)
    if oversampling > 1:
        image, region = (F.avg_pool2d(plane, oversampling) for plane in (image, region))
    return image * 2 - 1, region


def elliptic_region(image_NCHW: Tensor) -> Tensor:
    """Draw where an aligned face usually lies: a soft ellipse around the crop's middle, [N,1,S,S] in [0,1]."""
    size = image_NCHW.shape[-1]
    axis = (torch.arange(size, device=image_NCHW.device, dtype=torch.float32) + 0.5) / size * 2 - 1
    radius_HW = ((axis[:, None] / 0.95).square() + (axis[None, :] / 0.8).square()).sqrt()
    region_HW = torch.sigmoid((1 - radius_HW) * 12)
    return region_HW.expand(len(image_NCHW), 1, size, size)
