"""Augmentation on the device, the same for a picture and for what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import kornia.augmentation as ka
import torch
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section


class AugmentationConfig(Section):
    """Random changes of a crop; 0 turns one off."""

    rotation_degrees: float = Field(15.0, ge=0, description="largest rotation either way")
    brightness: float = Field(0.1, ge=0, description="largest relative change of brightness")
    contrast: float = Field(0.1, ge=0, description="largest relative change of contrast")
    saturation: float = Field(0.1, ge=0, description="largest relative change of saturation")
    hue: float = Field(0.05, ge=0, le=0.5, description="largest change of hue, turns of the colour circle")
    flip: float = Field(0.5, ge=0, le=1, description="probability of a mirror image")


class Augmentation(nn.Module):
    """Rotate, jitter and mirror [N,3,S,S] pictures in [-1,1]; each row gets a draw of its own."""

    def __init__(self, config: AugmentationConfig) -> None:
        super().__init__()
        self.geometry = ka.AugmentationSequential(
            ka.RandomHorizontalFlip(p=config.flip),
            # A black corner would tell the discriminator what is real: repeat the border instead.
            ka.RandomAffine(degrees=config.rotation_degrees, padding_mode="border", p=1.0)
            if config.rotation_degrees
            else ka.RandomHorizontalFlip(p=0.0),
            data_keys=["input"],
        )
        self.colour = ka.ColorJitter(config.brightness, config.contrast, config.saturation, config.hue, p=1.0)

    def forward(self, image: Tensor, followers: Sequence[Tensor] = (), masks: Sequence[Tensor] = ()) -> list[Tensor]:
        """Augment `image`; `followers` get the same geometry and colours, `masks` [N,1,S,S] the same geometry.

        Returns [image, *followers, *masks].
        """
        geometry = self.geometry.forward_parameters(image.shape)
        colour = self.colour.forward_parameters(image.shape)
        results = []
        for picture in (image, *followers):
            moved = self.geometry(picture, params=geometry)
            unit = ((moved + 1) / 2).clamp(0, 1)
            results.append(self.colour(unit, params=colour) * 2 - 1)
        results += [self.geometry(mask, params=geometry) for mask in masks]
        return results


def degrade_resolution(image: Tensor, least: float) -> Tensor:
    """Blur each row by shrinking it to a random share in [`least`, 1] of its size and back.

    An encoder meets sharp pictures and small, enlarged ones; it must know a person in both.
    """
    share_N = torch.empty(len(image), device=image.device).uniform_(least, 1.0)
    size = image.shape[-1]
    small = nn.functional.interpolate(image, size=max(1, round(size * least)), mode="bilinear", antialias=True)
    blurred = nn.functional.interpolate(small, size=size, mode="bilinear")
    weight = ((1 - share_N) / max(1e-6, 1 - least))[:, None, None, None]
    return torch.lerp(image, blurred, weight)
