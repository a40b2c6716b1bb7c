"""A small convolutional encoder of pictures whose feature maps serve as a perceptual measure.

Like VGG it has convolutions and ReLU alone, so that its features react to contrast and colour, and each stage halves
the resolution by average pooling, which leaves no grid in the gradients of a generator (Gatys et al. 2016, section 2).

Shape suffixes: N batch, C channels, H rows, W columns, E embedding length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section, in_unit

FLOOR_VARIANCE = 1e-5


class PictureEncoderConfig(Section):
    """The size of a picture encoder."""

    channels: tuple[int, ...] = Field((16, 32, 64, 128), min_length=2, description="Width of each stage.")
    embedding_length: int = Field(
        64, ge=2, description="Length of the embedding that it is trained by.", json_schema_extra=in_unit("")
    )


class PictureEncoder(nn.Module):
    """Map pictures to feature maps, and to an embedding of unit length for training."""

    def __init__(self, config: PictureEncoderConfig) -> None:
        super().__init__()
        self.config = config
        widths = (3, *config.channels)
        self.stages = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in zip(widths, config.channels, strict=False)
        )
        for stage in self.stages:
            assert isinstance(stage, nn.Conv2d)
            nn.init.kaiming_normal_(stage.weight, nonlinearity="relu")
            assert stage.bias is not None
            nn.init.zeros_(stage.bias)
        self.head = nn.Sequential(
            nn.Linear(2 * sum(config.channels), 2 * config.embedding_length),
            nn.ReLU(),
            nn.Linear(2 * config.embedding_length, config.embedding_length),
        )

    def features(self, picture_N3HW: Tensor) -> list[Tensor]:
        """Return the feature map of each stage, the finest first: [N,C,H,W], [N,C,H/2,W/2], ...; pictures in [-1,1]."""
        maps: list[Tensor] = []
        hidden = picture_N3HW
        for stage in self.stages:
            hidden = F.relu(stage(F.avg_pool2d(hidden, 2) if maps else hidden))
            maps.append(hidden)
        return maps

    def forward(self, picture_N3HW: Tensor) -> Tensor:
        """Embed pictures in [-1,1] as [N,E] of unit length, float32, by mean and deviation of all feature maps."""
        parts = [part.flatten(1) for maps in self.features(picture_N3HW) for part in measure_moments(maps)]
        return F.normalize(self.head(torch.cat(parts, dim=1)).float())


def measure_moments(features_NCHW: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel, float32 [N,C] each, in two passes over the features.

    E[x^2] - E[x]^2 rounds worse than the deviation from the mean, but takes a third of the time, and features of ReLU
    deviate by about as much as their mean.
    """
    features = features_NCHW.float()
    mean_NC, square_NC = features.mean(dim=(2, 3)), features.square().mean(dim=(2, 3))
    return mean_NC, ((square_NC - mean_NC.square()).clamp_min(0) + FLOOR_VARIANCE).sqrt()
