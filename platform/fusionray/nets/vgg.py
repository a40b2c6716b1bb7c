"""The convolutions of a VGG network up to its fourth resolution, as a perceptual network.

Source: VGG (Simonyan and Zisserman 2015), table 1, configurations A to E; torchvision's numbering of the layers, in
which convolution, ReLU and pooling count one each.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Mean and deviation of RGB in [0,1] over ImageNet, by which torchvision normalises what its VGG sees.
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CONVOLUTION = re.compile(r"(?:features\.)?(\d+)\.weight")
# ReLU1_1, 2_1, 3_1 and 4_1, the usual layers of style transfer (Huang and Belongie 2017, section 6.1).
NUM_LEVELS = 4


class VggFeatures(nn.Module):
    """The first feature map of each resolution, by the weights of a trained VGG.

    Raises: ValueError if the weights are not those of a VGG without batch norms.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        numbers = sorted(
            int(found[1])
            for name, tensor in weights.items()
            if (found := CONVOLUTION.fullmatch(name)) and tensor.ndim == 4
        )
        prefix = "features." if any(name.startswith("features.") for name in weights) else ""
        gaps = [after - before for before, after in pairwise(numbers)]
        # From one convolution to the next: 2 over a ReLU, 3 over a ReLU and a pooling.
        if not numbers or numbers[0] != 0 or not set(gaps) <= {2, 3} or gaps.count(3) < NUM_LEVELS - 1:
            raise ValueError(
                "holds no convolutions of a VGG without batch norms (features.0.weight, features.2.weight, ...)"
            )
        levels: list[list[nn.Conv2d]] = [[]]
        for number, gap in zip(numbers, (0, *gaps), strict=False):
            if gap == 3:
                if len(levels) == NUM_LEVELS:
                    break
                levels.append([])
            levels[-1].append(copy_convolution(weights, f"{prefix}{number}"))
        # Nothing after the last map is needed.
        levels[-1] = levels[-1][:1]
        self.levels = nn.ModuleList(nn.ModuleList(level) for level in levels)
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(IMAGENET_DEVIATION).view(1, 3, 1, 1), persistent=False)
        self.mean: Tensor
        self.deviation: Tensor

    def features(self, picture_N3HW: Tensor) -> list[Tensor]:
        """Return the feature map of each resolution, the finest first: [N,C,H,W], ...; pictures in [-1,1]."""
        hidden = ((picture_N3HW + 1) / 2 - self.mean) / self.deviation
        maps: list[Tensor] = []
        for level in self.levels:
            assert isinstance(level, nn.ModuleList)
            hidden = F.avg_pool2d(hidden, 2) if maps else hidden
            for place, convolution in enumerate(level):
                hidden = F.relu(convolution(hidden))
                if place == 0:
                    maps.append(hidden)
        return maps


def copy_convolution(weights: Mapping[str, Tensor], name: str) -> nn.Conv2d:
    """Build a convolution with the weights of a layer.

    Raises: ValueError if the layer has no bias, or is no 3x3 convolution.
    """
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    if bias is None or tuple(weight.shape[2:]) != (3, 3) or bias.shape != weight.shape[:1]:
        raise ValueError(f"{name} is not a 3x3 convolution with a bias")
    built = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1)
    with torch.no_grad():
        built.weight.copy_(weight)
        assert built.bias is not None
        built.bias.copy_(bias)
    return built


def name_as_torchvision(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the state of a `VggFeatures` the names that it is built from."""
    places = sorted({tuple(int(part) for part in name.split(".")[1:3]) for name in weights})
    named: dict[str, Tensor] = {}
    for place, (level, convolution) in enumerate(places):
        # A convolution and a ReLU each, and a pooling between levels.
        number = 2 * place + level
        for kind in ("weight", "bias"):
            named[f"features.{number}.{kind}"] = weights[f"levels.{level}.{convolution}.{kind}"]
    return named
