"""How good a fusion is, judged by an encoder that did not train it and by the rendered truth.

Shape suffixes: N batch, C channels, H rows, W columns, E embedding length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from kornia.metrics import ssim
from torch import Tensor, nn

from fusionray.nets.generator import Fused
from fusionray.recipes.face_fusion import render_truth
from fusionray.recipes.identity import FaceWindow
from fusionray.recipes.recipe import to_float, to_uint8
from fusionray.types import PairBatch

SSIM_WINDOW = 11


@dataclass(frozen=True)
class FusionScore:
    """Means over all pairs. SSIM is of RGB in [0,1] over the whole crop; None without rendered truth.

    `nearer_to_source` is the share of fused faces whose embedding is nearer to the source's than to the target's.
    """

    num_pairs: int
    nearer_to_source: float
    cosine_to_source: float
    cosine_to_target: float
    ssim_fused_to_truth: float | None
    ssim_target_to_truth: float | None


@torch.no_grad()
def score_fusion(
    generator: nn.Module, encoder: nn.Module, judge: nn.Module, window: FaceWindow, batches: Iterable[PairBatch]
) -> FusionScore:
    """Fuse held-out pairs and measure them.

    `encoder` gives the generator its source embeddings; `judge` measures and must not have supervised the training.
    """
    source_cosines, target_cosines, fused_ssims, target_ssims = [], [], [], []
    for batch in batches:
        source, target = to_float(batch.source), to_float(batch.target)
        fused: Fused = generator(encoder(window(source)), target)
        # What is judged is what is delivered: eight bits a channel.
        output = to_float(to_uint8(fused.output))
        fused_NE, source_NE, target_NE = (judge(window(image)) for image in (output, source, target))
        source_cosines.append((fused_NE * source_NE).sum(dim=1))
        target_cosines.append((fused_NE * target_NE).sum(dim=1))
        if batch.truth is not None:
            truth = to_float(to_uint8(render_truth(batch)[0]))
            fused_ssims.append(ssim_rows(output, truth))
            target_ssims.append(ssim_rows(target, truth))
    to_source, to_target = torch.cat(source_cosines), torch.cat(target_cosines)
    return FusionScore(
        num_pairs=len(to_source),
        nearer_to_source=float((to_source > to_target).float().mean()),
        cosine_to_source=float(to_source.mean()),
        cosine_to_target=float(to_target.mean()),
        ssim_fused_to_truth=float(torch.cat(fused_ssims).mean()) if fused_ssims else None,
        ssim_target_to_truth=float(torch.cat(target_ssims).mean()) if target_ssims else None,
    )


def ssim_rows(first_NCHW: Tensor, second_NCHW: Tensor) -> Tensor:
    """Structural similarity of pictures in [-1,1], one value a row.

    Source: Wang et al. 2004; Gaussian window of 11 px, computed by kornia.
    """
    map_NCHW: Tensor = ssim((first_NCHW + 1) / 2, (second_NCHW + 1) / 2, window_size=SSIM_WINDOW, max_val=1.0)
    return map_NCHW.mean(dim=(1, 2, 3))
