"""The fusion generator: from identity embedding, tokens of the source's face and target crop to fused crop and mask.

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

from fusionray.config import Section, in_unit
from fusionray.nets.blocks import EncoderBlock, FusionBlock, count_groups
from fusionray.nets.source_encoder import NUM_TOKENS, QUERY_SIZE, SourceAttention, SourceConfig

EMBEDDING_LENGTH = 512


class GeneratorConfig(Section):
    """The size of a generator."""

    size: int = Field(64, description="Side of the target crop; must equal data.size.")
    channels: tuple[int, ...] = Field((32, 64, 128, 192), description="Widths at full, half, quarter, ... resolution.")
    bottleneck_blocks: int = Field(2, ge=1, description="Fusion blocks at the lowest resolution.")
    source: SourceConfig | None = Field(
        None, description="What the generator sees of the source besides its embedding; null: nothing."
    )
    style_length: int = Field(
        256,
        ge=1,
        description="Length of the identity code that modulates the convolutions.",
        json_schema_extra=in_unit("values"),
    )
    mask_floor: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Smallest mask value; above 0 the generator cannot return the target unchanged.",
        json_schema_extra=in_unit(""),
    )

    @model_validator(mode="after")
    def check_size(self) -> GeneratorConfig:
        step = 2 ** (len(self.channels) - 1)
        if self.size % step or self.size < 4 * step:
            raise ValueError(f"size {self.size} must be a multiple of {step} and at least {4 * step}")
        needed = {QUERY_SIZE, *self.source.detail_widths} if self.source else set()
        if not needed <= set(self.sides):
            raise ValueError(f"source needs features of {sorted(needed)} px, but the generator has {self.sides}")
        return self

    @property
    def sides(self) -> list[int]:
        """Return the sides of the feature maps in pixels, from full resolution downwards."""
        return [self.size // 2**level for level in range(len(self.channels))]

    @property
    def source_length(self) -> int:
        """Return the length of the vector that encodes a source: its embedding, then its tokens."""
        return EMBEDDING_LENGTH + (NUM_TOKENS * self.source.token_length if self.source else 0)


class GeneratorOutput(NamedTuple):
    """`output` [N,3,S,S] in [-1,1]: the fused crop; `mask` [N,1,S,S] in [0,1]: the share of the generated face."""

    output: Tensor
    mask: Tensor


class Generator(nn.Module):
    """Encode the target, inject the identity at every scale of the decoder, and blend the result into the target.

    Source: FaceShifter (Li et al. 2019) for multi-scale attributes; StyleGAN2 for the modulation; like public one-shot
    swappers, the network blends by a mask of its own.
    """

    def __init__(self, config: GeneratorConfig, face_view_23: Tensor | None = None) -> None:
        """Build the network; `face_view_23` maps the unit square of the source's face to that of the target's crop.

        The default is the identity; a checkpoint overwrites what follows from it.
        """
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
        detail = config.source.detail_widths if config.source else {}
        self.decoder = nn.ModuleList(
            FusionBlock(below, here, here, config.style_length, detail.get(side, 0))
            for side, (here, below) in reversed(list(zip(config.sides, pairwise(widths), strict=False)))
        )
        self.lookup: SourceAttention | None = None
        if config.source is not None:
            width = dict(zip(config.sides, widths, strict=True))[QUERY_SIZE]
            view = torch.eye(2, 3) if face_view_23 is None else face_view_23
            self.lookup = SourceAttention(config.source, width, view)
        self.head_norm = nn.GroupNorm(count_groups(widths[0]), widths[0])
        self.head = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, source: Tensor, target: Tensor) -> GeneratorOutput:
        """Fuse a batch.

        `source` [N,L], L = `config.source_length`: unit-length identity embedding [N,512] and, if the generator
        attends to the source, its tokens (`encode_source`); `target` [N,3,S,S] RGB in [-1,1].
        """
        # The entries of a unit vector have size 1/sqrt(E): scale them to size 1.
        style_NS = self.mapping(source[:, :EMBEDDING_LENGTH] * math.sqrt(EMBEDDING_LENGTH))
        features = [self.stem(target)]
        for down in self.encoder:
            features.append(down(features[-1]))
        deepest = features.pop()
        hidden = deepest
        for block in self.bottleneck:
            hidden = block(hidden, deepest, style_NS)
        hidden, details = self.attend(hidden, source, {})
        for block, skip in zip(self.decoder, reversed(features), strict=True):
            hidden = block(hidden, skip, style_NS, details.get(skip.shape[-1]))
            hidden, details = self.attend(hidden, source, details)
        # Contiguous: in channels-last layout face and mask would be strided, and tanh on a CPU would not vectorise.
        head_N4HW = self.head(F.silu(self.head_norm(hidden))).float().contiguous()
        face = torch.tanh(head_N4HW[:, :3])
        floor = self.config.mask_floor
        mask = floor + (1 - floor) * torch.sigmoid(head_N4HW[:, 3:])
        return GeneratorOutput(mask * face + (1 - mask) * target, mask)

    def attend(
        self, hidden_NCHW: Tensor, source_NL: Tensor, details: dict[int, Tensor]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Attend to the source if the features have QUERY_SIZE px; otherwise return features and details unchanged."""
        if self.lookup is None or hidden_NCHW.shape[-1] != QUERY_SIZE:
            return hidden_NCHW, details
        attended: tuple[Tensor, dict[int, Tensor]] = self.lookup(hidden_NCHW, source_NL[:, EMBEDDING_LENGTH:])
        return attended
