"""What is trained as one network: the encoder of the source's picture, and the generator that looks at it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusionray.nets.generator import Generator, GeneratorConfig, GeneratorOutput
from fusionray.nets.identity import IdentityEncoder
from fusionray.nets.source_encoder import SourceEncoder


class SourceConditioner(nn.Module):
    """Everything that the generator is told of a source, from its picture; what is delivered beside the generator."""

    def __init__(self, identity: IdentityEncoder, network: FusionNetwork) -> None:
        super().__init__()
        self.identity = identity
        self.tokens = network.source

    def forward(self, face: Tensor) -> Tensor:
        """Read `face` [N,3,112,112] in [-1,1] as [N,L], all in [-1,1]: `GeneratorConfig.source_length`."""
        return encode_source(self.identity(face), face, self.tokens)


class FusionNetwork(nn.Module):
    """A generator and, if it looks at more of the source than its embedding, the encoder of that."""

    def __init__(self, config: GeneratorConfig, face_view_23: Tensor | None = None) -> None:
        """Build it; `face_view_23` maps the unit square of the source's face to that of the target's crop."""
        super().__init__()
        self.generator = Generator(config, face_view_23)
        self.source = SourceEncoder(config.source) if config.source else None

    def forward(self, face: Tensor, embedding: Tensor, target: Tensor) -> GeneratorOutput:
        """Fuse a batch.

        `face` [N,3,112,112] sources aligned to arcface_112, in [-1,1]; `embedding` [N,512] of unit length, theirs;
        `target` [N,3,S,S] RGB in [-1,1]. Returns what `Generator` does.
        """
        fused: GeneratorOutput = self.generator(encode_source(embedding, face, self.source), target)
        return fused


def encode_source(embedding: Tensor, face: Tensor, tokens: SourceEncoder | None) -> Tensor:
    """Put together what a generator is told of sources, [N,L]: their embeddings [N,512], tokens of their faces."""
    return embedding if tokens is None else torch.cat([embedding, tokens(face)], dim=1)
