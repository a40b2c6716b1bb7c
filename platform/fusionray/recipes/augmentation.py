"""Augmentation on the device, equal for a picture and for the references and masks that belong to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section, in_unit
from fusionray.recipes.affine import build_colours, build_views, recolour, warp_affine


class AugmentationConfig(Section):
    """Random changes of a crop; 0 turns one off."""

    # Off by default: aligned crops are upright, and a bilinear warp removes 0.3 to 0.4 of the gradient energy of the
    # pictures that a generator learns to draw (docs/experiments.md). Encoders, which draw nothing, may use it.
    rotation_degrees: float = Field(
        0.0, ge=0, description="Largest rotation in either direction; a rotation blurs the crop."
    )
    brightness: float = Field(
        0.1, ge=0, description="Largest change of brightness, where white - black is 1.", json_schema_extra=in_unit("")
    )
    contrast: float = Field(
        0.1, ge=0, lt=1, description="Largest relative change of contrast.", json_schema_extra=in_unit("share")
    )
    saturation: float = Field(
        0.1, ge=0, le=1, description="Largest relative change of saturation.", json_schema_extra=in_unit("share")
    )
    hue: float = Field(0.05, ge=0, le=0.5, description="Largest change of hue.", json_schema_extra=in_unit("turns"))
    flip: float = Field(0.5, ge=0, le=1, description="Probability of mirroring.", json_schema_extra=in_unit("share"))


class Augmentation(nn.Module):
    """Mirror, rotate and colour-jitter pictures [N,3,S,S] in [-1,1]; each row gets its own random changes."""

    def __init__(self, config: AugmentationConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, image: Tensor, references: Sequence[Tensor] = (), masks: Sequence[Tensor] = ()) -> list[Tensor]:
        """Augment `image`; `references` get the same geometry and colours, `masks` [N,1,S,S] the same geometry.

        Returns [image, *references, *masks].
        """
        num_pictures = 1 + len(references)
        warped = self.warp([image, *references, *masks])
        return [*self.jitter_colours(warped[:num_pictures]), *warped[num_pictures:]]

    def warp(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """Mirror and rotate all tensors by the same random changes."""
        config, like = self.config, pictures[0]
        draws_N2 = torch.rand(len(like), 2, device=like.device)
        mirrored_N = draws_N2[:, 0] < config.flip
        if not config.rotation_degrees:
            if not config.flip:
                return list(pictures)
            return [torch.where(mirrored_N[:, None, None, None], picture.flip(-1), picture) for picture in pictures]
        angle_N = (draws_N2[:, 1] * 2 - 1) * math.radians(config.rotation_degrees)
        view_N23 = build_views(
            1 - 2 * mirrored_N.float(), angle_N, torch.ones_like(angle_N), torch.zeros_like(draws_N2)
        )
        # One warp for all tensors, since computing the sampling positions is most of the work. The padding repeats the
        # border: by black corners the discriminator would recognise augmented pictures.
        moved = warp_affine(torch.cat(list(pictures), dim=1), view_N23, like.shape[-1])
        return list(torch.split(moved, [picture.shape[1] for picture in pictures], dim=1))

    def jitter_colours(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """Change the colours of all tensors by the same random changes."""
        config, like = self.config, pictures[0]
        if not (config.brightness or config.contrast or config.saturation or config.hue):
            return list(pictures)
        brightness, contrast, saturation, hue = (torch.rand(len(like), 4, device=like.device) * 2 - 1).unbind(1)
        contrast_N = 1 + config.contrast * contrast
        linear_N33 = build_colours(contrast_N, 1 + config.saturation * saturation, math.tau * config.hue * hue)
        # In [0,1] the map is M (x + b). M scales grey by c, so in [-1,1] the map is M x + c (1 + 2 b) - 1.
        offset_N = contrast_N * (1 + 2 * config.brightness * brightness) - 1
        return [recolour(picture, linear_N33, offset_N).clamp(-1, 1) for picture in pictures]


def degrade_resolution(image: Tensor, min_share: float) -> Tensor:
    """Blur each row as if its resolution were reduced to a random share in [`min_share`, 1].

    An encoder must recognise a person in sharp pictures and in small, enlarged ones.
    """
    share_N = torch.empty(len(image), device=image.device).uniform_(min_share, 1.0)
    size = image.shape[-1]
    small = nn.functional.interpolate(image, size=max(1, round(size * min_share)), mode="bilinear", antialias=True)
    blurred = nn.functional.interpolate(small, size=size, mode="bilinear")
    weight = ((1 - share_N) / max(1e-6, 1 - min_share))[:, None, None, None]
    return torch.lerp(image, blurred, weight)
