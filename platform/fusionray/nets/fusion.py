"""Identity encoder and generator as one trained network."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fusionray.nets.generator import Fused, Generator
from fusionray.nets.identity import IdentityEncoder


class FusionNetwork(nn.Module):
    """A generator with an identity encoder of its own.

    An encoder that was taught to tell people apart keeps what tells them apart; to draw a person, more is needed.
    Here the picture that is wanted teaches the encoder, too.
    """

    def __init__(self, identity: IdentityEncoder, generator: Generator) -> None:
        """Begin with a copy of `identity`: the original goes on watching, unchanged."""
        super().__init__()
        self.identity = copy.deepcopy(identity).requires_grad_(True)
        self.generator = generator

    def train(self, mode: bool = True) -> FusionNetwork:
        """Switch to training; the encoder's batch norms keep the statistics they came with.

        A step sees few faces of one recipe's augmentation: their statistics would be noise, and other than in use.
        """
        super().train(mode)
        self.identity.eval()
        return self

    def forward(self, source: Tensor, target: Tensor) -> Fused:
        """Fuse a batch.

        `source` [N,3,112,112] aligned faces in [-1,1]; `target` [N,3,S,S] RGB in [-1,1]. Returns what `Generator` does.
        """
        fused: Fused = self.generator(self.identity(source), target)
        return fused
