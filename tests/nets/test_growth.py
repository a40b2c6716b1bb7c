from __future__ import annotations

from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionray.nets.discriminator import Discriminator, DiscriminatorConfig
from fusionray.nets.fusion import FusionNetwork
from fusionray.nets.generator import GeneratorConfig
from fusionray.nets.growth import grow_weights
from fusionray.nets.source_encoder import SourceConfig

SOURCE = SourceConfig(channels=(4, 8, 16), detail=(4, 4), heads=4)
SMALL = GeneratorConfig(size=64, channels=(8, 12, 16, 24), bottleneck_blocks=1, style_length=16, source=SOURCE)
LARGE = SMALL.model_copy(update={"size": 128, "channels": (4, *SMALL.channels)})


class SmallerStem(nn.Module):
    """The first features of a smaller network, in place of a larger one's first encoder block."""

    def __init__(self, stem: nn.Module, picture: Tensor) -> None:
        super().__init__()
        self.stem, self.picture = stem, picture

    def forward(self, _: Tensor) -> Tensor:
        features: Tensor = self.stem(self.picture)
        return features


@torch.no_grad()
def test_a_grown_generator_computes_what_the_smaller_one_did_from_its_levels_on() -> None:
    torch.manual_seed(0)
    small, large = FusionNetwork(SMALL).eval(), FusionNetwork(LARGE).eval()
    first = large.generator.stem.weight.clone()
    large.load_state_dict(grow_weights(large, small.state_dict(), Fraction(2)))
    assert torch.equal(large.generator.stem.weight, first)
    face, embedding = torch.rand(2, 3, 112, 112) * 2 - 1, F.normalize(torch.randn(2, 512))
    target = torch.rand(2, 3, 64, 64) * 2 - 1
    seen: list[Tensor] = []
    small.generator.head_norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    large.generator.decoder[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    small(face, embedding, target)
    large.generator.encoder[0] = SmallerStem(small.generator.stem, target)
    large(face, embedding, F.interpolate(target, scale_factor=2.0))
    torch.testing.assert_close(seen[1], seen[0])


@torch.no_grad()
def test_a_grown_discriminator_judges_the_halved_picture_as_the_smaller_one_judges_it() -> None:
    torch.manual_seed(1)
    small = Discriminator(DiscriminatorConfig(channels=(4, 8), scales=2))
    large = Discriminator(DiscriminatorConfig(channels=(4, 8), scales=3))
    large.load_state_dict(grow_weights(large, small.state_dict(), Fraction(2)))
    picture = torch.rand(2, 3, 128, 128) * 2 - 1
    found, wanted = large(picture).logits, small(F.avg_pool2d(picture, 2)).logits
    torch.testing.assert_close(found[1:], wanted)
    # What full resolution was is the best beginning for the new one.
    torch.testing.assert_close(found[0], small(picture).logits[0])


def test_weights_of_a_network_of_the_same_levels_stay_as_they_are() -> None:
    network = FusionNetwork(SMALL)
    weights = FusionNetwork(SMALL).state_dict()
    assert grow_weights(network, weights, Fraction(1)).keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in grow_weights(network, weights, Fraction(1)).items())
