"""The perceptual networks: a VGG by its weights alone, and the picture encoder."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fusionray.nets.picture_encoder import PictureEncoder, PictureEncoderConfig, measure_moments
from fusionray.nets.vgg import IMAGENET_DEVIATION, IMAGENET_MEAN, VggFeatures

# Convolutions of a narrow VGG-16 by their numbers among the layers, with the width of each; the last one is not needed.
LAYERS = {0: 4, 2: 4, 5: 6, 7: 6, 10: 8, 12: 8, 14: 8, 17: 10, 19: 10}


def draw_weights(prefix: str = "features.") -> dict[str, Tensor]:
    generator, before = torch.Generator().manual_seed(0), 3
    weights = {"classifier.0.weight": torch.zeros(2, 2)}
    for number, width in LAYERS.items():
        weights[f"{prefix}{number}.weight"] = torch.randn(width, before, 3, 3, generator=generator) * 0.3
        weights[f"{prefix}{number}.bias"] = torch.randn(width, generator=generator) * 0.1
        before = width
    return weights


@pytest.mark.parametrize("prefix", ["features.", ""])
def test_the_first_map_of_each_resolution_is_that_of_the_layers_in_order(prefix: str) -> None:
    weights = draw_weights(prefix)
    picture = torch.rand(2, 3, 32, 24, generator=torch.Generator().manual_seed(1)) * 2 - 1
    maps = VggFeatures(weights).features(picture)
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_DEVIATION))
    hidden, expected = ((picture + 1) / 2 - mean) / deviation, []
    for number in list(LAYERS)[:8]:
        if number in {5, 10, 17}:
            hidden = F.avg_pool2d(hidden, 2)
        hidden = F.relu(
            F.conv2d(hidden, weights[f"{prefix}{number}.weight"], weights[f"{prefix}{number}.bias"], padding=1)
        )
        if number in {0, 5, 10, 17}:
            expected.append(hidden)
    assert [tuple(each.shape) for each in maps] == [(2, 4, 32, 24), (2, 6, 16, 12), (2, 8, 8, 6), (2, 10, 4, 3)]
    for found, wanted in zip(maps, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_other_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="holds no convolutions of a VGG"):
        VggFeatures({"layer1.0.conv1.weight": torch.zeros(4, 3, 3, 3)})
    weights = draw_weights()
    del weights["features.5.bias"]
    with pytest.raises(ValueError, match=r"features\.5 is not a 3x3 convolution with a bias"):
        VggFeatures(weights)


def test_an_encoder_maps_pictures_of_any_size_to_unit_length() -> None:
    encoder = PictureEncoder(PictureEncoderConfig(channels=(4, 6, 8), embedding_length=5))
    picture = torch.rand(2, 3, 20, 28, generator=torch.Generator().manual_seed(1)) * 2 - 1
    assert [tuple(each.shape) for each in encoder.features(picture)] == [(2, 4, 20, 28), (2, 6, 10, 14), (2, 8, 5, 7)]
    torch.testing.assert_close(encoder(picture).norm(dim=1), torch.ones(2))
    mean, deviation = measure_moments(picture)
    torch.testing.assert_close(mean, picture.mean(dim=(2, 3)))
    torch.testing.assert_close(deviation, picture.flatten(2).std(dim=2, unbiased=False), atol=1e-4, rtol=0)
