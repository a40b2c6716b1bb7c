"""The fusion generator: identity embedding + target crop -> fused crop and blending mask.

Shape suffixes: N batch, C channels, H rows, W columns, E embedding length, S style length.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusionray.config import Section
from fusionray.nets.blocks import DrawingBlock, EncoderBlock, FusionBlock, count_groups

EMBEDDING_LENGTH = 512


class GeneratorConfig(Section):
    """The size of a generator; `channels` names the width at full, half, quarter, ... resolution."""

    size: int = Field(64, description="side of the target crop, pixels")
    channels: tuple[int, ...] = Field((32, 64, 128, 192), description="widths from full resolution downwards")
    bottleneck_blocks: int = Field(2, ge=1, description="fusion blocks at the lowest resolution")
    skip_size: int | None = Field(
        None,
        ge=1,
        description="largest side of target features that reach the decoder, which draws anew what is finer; null: all",
    )
    style_length: int = Field(256, ge=1, description="length of the identity code that modulates the convolutions")
    mask_floor: float = Field(
        0.0, ge=0, lt=1, description="least mask value; above 0 the generator cannot return the target unchanged"
    )

    @model_validator(mode="after")
    def check_size(self) -> GeneratorConfig:
        step = 2 ** (len(self.channels) - 1)
        if self.size % step or self.size < 4 * step:
            raise ValueError(f"size {self.size} must be a multiple of {step} and at least {4 * step}")
        return self


class Fused(NamedTuple):
    """What the generator returns, target value range [-1,1], mask [0,1]."""

    output: Tensor
    mask: Tensor


class Generator(nn.Module):
    """Encode the target, inject the identity at every scale on the way up, blend the result into the target.

    Source: FaceShifter (Li et al. 2019) for multi-scale attributes; StyleGAN2 for the modulation; the mask follows
    the practice of public one-shot swappers, which blend inside the network.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        self.config = config
        widths = config.channels
        self.mapping = nn.Sequential(
            nn.Linear(EMBEDDING_LENGTH, config.style_length),
            nn.SiLU(),
            nn.Linear(config.style_length, config.style_length),
            nn.SiLU(),
        )
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        self.encoder = nn.ModuleList(EncoderBlock(a, b) for a, b in pairwise(widths))
        deepest = widths[-1]
        self.bottleneck = nn.ModuleList(
            FusionBlock(deepest, deepest, deepest, config.style_length) for _ in range(config.bottleneck_blocks)
        )
        self.decoder = nn.ModuleList(
            FusionBlock(below, here, here, config.style_length)
            if config.skip_size is None or config.size // 2**level <= config.skip_size
            else DrawingBlock(below, here, config.style_length)
            for level, (here, below) in reversed(list(enumerate(pairwise(widths))))
        )
        # Where hair begins is the target's own: without fine features in the decoder, the mask looks at them itself.
        self.edges: nn.Conv2d | None = None
        if isinstance(self.decoder[-1], DrawingBlock):
            self.edges = nn.Conv2d(widths[0], 1, 3, padding=1)
        self.head_norm = nn.GroupNorm(count_groups(widths[0]), widths[0])
        self.head = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, source: Tensor, target: Tensor) -> Fused:
        """Fuse a batch.

        `source` [N,512] unit-length identity embedding; `target` [N,3,S,S] RGB in [-1,1].
        Returns `output` [N,3,S,S] in [-1,1] and `mask` [N,1,S,S] in [0,1].
        """
        # A unit vector has entries of size 1/sqrt(E): bring them to size 1.
        style_NS = self.mapping(source * math.sqrt(EMBEDDING_LENGTH))
        features = [self.stem(target)]
        for down in self.encoder:
            features.append(down(features[-1]))
        deepest = features.pop()
        hidden = deepest
        for block in self.bottleneck:
            hidden = block(hidden, deepest, style_NS)
        for block, skip in zip(self.decoder, reversed(features), strict=True):
            hidden = block(hidden, style_NS) if isinstance(block, DrawingBlock) else block(hidden, skip, style_NS)
        # Planes apart: with the channels last, face and mask would be strided, and a CPU takes tanh one by one.
        head_N4HW = self.head(F.silu(self.head_norm(hidden))).float().contiguous()
        face = torch.tanh(head_N4HW[:, :3])
        floor = self.config.mask_floor
        logit_N1HW = head_N4HW[:, 3:]
        if self.edges is not None:
            logit_N1HW = logit_N1HW + self.edges(F.silu(features[0])).float()
        mask = floor + (1 - floor) * torch.sigmoid(logit_N1HW)
        return Fused(mask * face + (1 - mask) * target, mask)
