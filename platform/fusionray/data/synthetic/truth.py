"""What a fusion of synthetic faces should look like: the rendered true fusion.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fusionray.data.synthetic.renderer import render_with_mask
from fusionray.types import PairBatch


def render_truth(batch: PairBatch, oversampling: int = 1) -> tuple[Tensor, Tensor]:
    """Render the source person with the target's attributes in the target's crop: [N,3,S,S] in [-1,1], region [0,1].

    Crops are reduced from larger pictures, and each of their pixels is an average; `oversampling` renders the truth
    that many times as large and averages too, so that both are equally sharp. It costs its square in time.
    """
    assert batch.truth is not None
    truth = batch.truth
    size = batch.target.shape[-1] * oversampling
    image, region = render_with_mask(truth.source_identity, truth.target_attributes, size, truth.view)
    if oversampling > 1:
        image, region = (F.avg_pool2d(plane, oversampling) for plane in (image, region))
    return image * 2 - 1, region
