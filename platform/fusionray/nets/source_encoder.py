"""Tokens of the source's face, and the cross-attention by which the generator reads them.

An embedding encodes who a person is, but not details such as the exact width of the mouth or the position of a freckle.
The generator takes these from tokens of the source's face: its features attend to a coarse grid of tokens, and the same
attention weights fetch coarse and fine features.

Source: cross-attention as in Transformers (Vaswani et al. 2017); fetching fine features by attention between coarse
ones follows TTSR (Yang et al. 2020), section 3.2.

Shape suffixes: N batch, T tokens (cells of the source's face), K values of a token, C channels, H rows, W columns.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from fusionray.config import Section, in_unit
from fusionray.nets.blocks import count_groups

TOKEN_GRID = 14
# Side of the target's features that attend: its cells are as large as the source's if both crops are equally tight.
QUERY_SIZE = 16
NUM_TOKENS = TOKEN_GRID * TOKEN_GRID


class SourceConfig(Section):
    """Size of the source tokens that the generator attends to, besides the embedding."""

    channels: tuple[int, int, int] = Field(
        (16, 32, 96),
        description="Widths of the source encoder at 56, 28 and 14 px of the 112 px face.",
        json_schema_extra=in_unit("channels"),
    )
    detail: tuple[int, int] = Field(
        (16, 8),
        description="Widths of the features that reach the generator at 28 and 56 px.",
        json_schema_extra=in_unit("channels"),
    )
    heads: int = Field(4, ge=1, description="Attention heads: source positions that one target feature may attend to.")

    @model_validator(mode="after")
    def check_heads(self) -> SourceConfig:
        if self.channels[-1] % (4 * self.heads):
            raise ValueError(f"channels end in {self.channels[-1]}, which must be a multiple of 4 x heads")
        if any(width % self.heads for width in self.detail):
            raise ValueError(f"detail {self.detail} must be multiples of heads={self.heads}")
        return self

    @property
    def detail_widths(self) -> dict[int, int]:
        """Return the widths of the fetched detail features by the side of the target's features that they join."""
        return {2 * QUERY_SIZE: self.detail[0], 4 * QUERY_SIZE: self.detail[1]}

    @property
    def token_length(self) -> int:
        """Return the length of a token: coarse features, then the finer features of its cell."""
        return self.channels[-1] + 4 * self.detail[0] + 16 * self.detail[1]


class SourceEncoder(nn.Module):
    """Encode source faces as tokens, one for each cell of a 14 x 14 grid."""

    def __init__(self, config: SourceConfig) -> None:
        super().__init__()
        widths = (3, *config.channels)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 4, 2, 1) for a, b in zip(widths, config.channels, strict=False))
        self.norms = nn.ModuleList(nn.GroupNorm(count_groups(width), width) for width in config.channels)
        self.coarse = nn.Conv2d(config.channels[2], config.channels[2], 3, padding=1)
        self.detail = nn.ModuleList(
            nn.Conv2d(width, kept, 3, padding=1)
            for width, kept in zip(reversed(config.channels[:2]), config.detail, strict=True)
        )

    def forward(self, face: Tensor) -> Tensor:
        """Encode `face` [N,3,112,112] RGB in [-1,1], aligned to arcface_112, as [N,T*K] in [-1,1]."""
        maps: list[Tensor] = []
        hidden = face
        for conv, norm in zip(self.convs, self.norms, strict=True):
            hidden = F.silu(norm(conv(hidden)))
            maps.append(hidden)
        fine, middle, deepest = maps
        parts_NKHW = [
            self.coarse(deepest),
            F.pixel_unshuffle(self.detail[0](middle), 2),
            F.pixel_unshuffle(self.detail[1](fine), 4),
        ]
        tokens_NTK = torch.cat([part.flatten(2) for part in parts_NKHW], dim=1).transpose(1, 2)
        # Bounded, so that half precision and stored tokens keep the same range.
        return torch.tanh(tokens_NTK.flatten(1).float())


class SourceAttention(nn.Module):
    """Cross-attention from the target's features to the source's tokens."""

    places_query: Tensor
    places_key: Tensor

    def __init__(self, config: SourceConfig, width: int, face_view_23: Tensor) -> None:
        """Build it for features of `width` channels; `face_view_23` maps the face's unit square to the crop's."""
        super().__init__()
        self.config = config
        inner = config.channels[-1]
        self.parts = [inner, 4 * config.detail[0], 16 * config.detail[1]]
        self.norm = nn.GroupNorm(count_groups(width), width)
        self.query = nn.Linear(width, inner)
        self.key = nn.Linear(inner, inner)
        self.value = nn.Linear(inner, inner)
        self.out = nn.Conv2d(inner, width, 1)
        self.join = nn.Conv2d(width, width, 3, padding=1)
        # At first every feature attends to its own position: position codes outweigh the small random projections.
        self.locality = nn.Parameter(torch.full((1,), 1.5))
        for projection in (self.query, self.key):
            nn.init.normal_(projection.weight, std=0.02)
        length = inner // config.heads
        key_T2 = cell_centres(TOKEN_GRID)
        key_T2 = key_T2 @ face_view_23[:, :2].T + face_view_23[:, 2]
        # Part of the state dict, because the codes depend on the template of the target's crop.
        self.register_buffer("places_key", encode_positions(key_T2, length))
        self.register_buffer("places_query", encode_positions(cell_centres(QUERY_SIZE), length))

    def forward(self, x_NCHW: Tensor, tokens_NK: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Add to `x` [N,C,16,16] what it attends to among the tokens [N,T*K].

        Also return the fetched detail features, [N,D,S,S] by their side S: see `detail_widths`.
        """
        tokens_NTK = tokens_NK.to(x_NCHW.dtype).reshape(x_NCHW.shape[0], NUM_TOKENS, -1)
        coarse_NTC, *details = torch.split(tokens_NTK, self.parts, dim=2)
        hidden_NTC = self.norm(x_NCHW).flatten(2).transpose(1, 2)
        query = self.split_heads(self.query(hidden_NTC)) + self.places_query * self.locality
        key = self.split_heads(self.key(coarse_NTC)) + self.places_key * self.locality
        # Coarse and fine features share the attention weights, which are computed once.
        value = torch.cat([self.split_heads(part) for part in (self.value(coarse_NTC), *details)], dim=3)
        # Not scaled_dot_product_attention: with values longer than keys it takes 2.5 times as long on a CPU.
        scale = 1 / math.sqrt(query.shape[-1])
        weights = torch.softmax(torch.matmul((query * scale).to(value.dtype), key.to(value.dtype).mT), dim=-1)
        attended = torch.matmul(weights.to(value.dtype), value)
        parts = torch.split(attended, [length // self.config.heads for length in self.parts], dim=3)
        # [N,heads,T,C/heads] -> [N,C,H,W]. Sizes from `shape`: `len` would fix the batch size of an exported graph.
        count, _, height, width = x_NCHW.shape
        coarse, middle, fine = (part.transpose(2, 3).reshape(count, -1, height, width) for part in parts)
        joined = x_NCHW + self.join(F.silu(x_NCHW + self.out(coarse)))
        return joined, {2 * QUERY_SIZE: F.pixel_shuffle(middle, 2), 4 * QUERY_SIZE: F.pixel_shuffle(fine, 4)}

    def split_heads(self, rows_NTC: Tensor) -> Tensor:
        """Split the channels into heads: [N,heads,T,C/heads]."""
        count, tokens, _ = rows_NTC.shape
        return rows_NTC.reshape(count, tokens, self.config.heads, -1).transpose(1, 2)


def cell_centres(side: int) -> Tensor:
    """Return the centres of a grid's cells in the unit square, row by row: [T,2] as (x, y)."""
    axis = (torch.arange(side) + 0.5) / side
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=1)


def encode_positions(position_T2: Tensor, length: int) -> Tensor:
    """Encode positions by sines and cosines, so that the product of two codes falls with distance: [T,length]."""
    frequency = torch.arange(1, length // 4 + 1) * math.pi
    waves_T2F = position_T2[:, :, None] * frequency
    return torch.cat([waves_T2F.sin(), waves_T2F.cos()], dim=2).flatten(1)
