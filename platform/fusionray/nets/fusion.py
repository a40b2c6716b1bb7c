"""The fusion network, which is trained as one: a generator, and the encoder of the source's face for its tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusionray.nets.generator import Generator, GeneratorConfig, GeneratorOutput
from fusionray.nets.identity import IdentityEncoder
from fusionray.nets.source_encoder import SourceEncoder


class SourceConditioner(nn.Module):
    """Map a source face to the vector that conditions the generator; a bundle holds it as `identity.onnx`."""

    def __init__(self, identity: IdentityEncoder, network: FusionNetwork) -> None:
        super().__init__()
        self.identity = identity
        self.tokens = network.source

    def forward(self, face: Tensor) -> Tensor:
        """Encode `face` [N,3,112,112] in [-1,1] as [N,L] in [-1,1], L = `GeneratorConfig.source_length`."""
        return encode_source(self.identity(face), face, self.tokens)


class FusionNetwork(nn.Module):
    """A generator and, if it attends to the source's face, the encoder of the face's tokens."""

    def __init__(self, config: GeneratorConfig, face_view_23: Tensor | None = None) -> None:
        """Build the networks; `face_view_23` maps the unit square of the source's face to that of the target's crop."""
        super().__init__()
        self.generator = Generator(config, face_view_23)
        self.source = SourceEncoder(config.source) if config.source else None

    def forward(self, face: Tensor, embedding: Tensor, target: Tensor) -> GeneratorOutput:
        """Fuse a batch.

        `face` [N,3,112,112]: sources aligned to arcface_112, in [-1,1]; `embedding` [N,512]: their embeddings, of unit
        length; `target` [N,3,S,S] RGB in [-1,1]. Returns the output of `Generator`.
        """
        output: GeneratorOutput = self.generator(encode_source(embedding, face, self.source), target)
        return output


def encode_source(embedding: Tensor, face: Tensor, tokens: SourceEncoder | None) -> Tensor:
    """Concatenate embeddings [N,512] and, if there is a token encoder, the tokens of the faces: [N,L]."""
    return embedding if tokens is None else torch.cat([embedding, tokens(face)], dim=1)
