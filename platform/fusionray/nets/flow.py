"""Moving the target's fine features to where the fused face has them.

Another person's brows, nose and jaw lie a pixel or two from the target's. Convolutions that a style modulates can
hardly move anything: they have to draw it anew. Here coarser features, which know both faces, say by how much each
place moves, and the target's features are fetched from there.

Source: features warped by a predicted flow as in the First Order Motion Model (Siarohin et al. 2019), section 3.2;
from coarse to fine as in PWC-Net (Sun et al. 2018), section 3.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fusionray.nets.blocks import RecomputableUnit, count_groups, upsample
from fusionray.nets.source import grid_places

# What a prediction of 1 moves by, in half sides of the crop: predictions are of the size of other features.
STEP = 1 / 8


class Mover(RecomputableUnit):
    """Refine the flow for one scale, and move features by it; to begin with nothing moves."""

    places: Tensor

    def __init__(self, channels: int, side: int) -> None:
        """Make it for moving features of `side` as features of `channels` at half of it ask."""
        super().__init__()
        self.norm = nn.GroupNorm(count_groups(channels), channels)
        self.flow = nn.Conv2d(channels, 2, 3, padding=1)
        nn.init.zeros_(self.flow.weight)
        assert self.flow.bias is not None
        nn.init.zeros_(self.flow.bias)
        places = (grid_places(side) * 2 - 1).reshape(1, side, side, 2)
        self.register_buffer("places", places, persistent=False)

    def compute(
        self, maps_NCHW: Tensor, asking_NCHW: Tensor, coarser_N2HW: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Move `maps` [N,C,S,S] as `asking` [N,Cin,S/2,S/2] says, on top of the flow of the scale before [N,2,S/2,S/2].

        Returns the moved maps and the flow [N,2,S,S] in float32: the place, (x, y) in half sides of the crop from its
        own, that each is fetched from. Beyond the crop is what lies at its edge.
        """
        # Places in half precision would be off by a quarter of a pixel.
        flow = self.flow(F.silu(self.norm(asking_NCHW))).float() * STEP
        if coarser_N2HW is not None:
            flow = flow + coarser_N2HW
        flow = upsample(flow)
        places = self.places + flow.permute(0, 2, 3, 1)
        moved = F.grid_sample(maps_NCHW.float(), places, padding_mode="border", align_corners=False)
        return moved.to(maps_NCHW.dtype), flow
