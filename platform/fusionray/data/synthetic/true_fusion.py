"""Render the true fusion of synthetic faces: the picture that a perfect model would return.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fusionray.data.synthetic.renderer import render_with_region
from fusionray.types import PairBatch


def render_true_fusion(batch: PairBatch, oversampling: int = 1) -> tuple[Tensor, Tensor]:
    """Render the source person with the target's attributes in the target's crop: [N,3,S,S] in [-1,1], region [0,1].

    `batch.truth` must not be None. Each pixel of a crop is an average over pixels of a larger picture. `oversampling`
    renders that many times as large and averages in the same way, so that both are equally sharp; the time grows with
    its square.
    """
    assert batch.truth is not None
    truth = batch.truth
    size = batch.target.shape[-1] * oversampling
    image, region = render_with_region(truth.source_identity, truth.target_attributes, size, truth.view)
    if oversampling > 1:
        image, region = (F.avg_pool2d(plane, oversampling) for plane in (image, region))
    return image * 2 - 1, region
