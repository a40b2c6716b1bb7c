"""Identity perturbation: change a target face so that the original picture can supervise the fusion.

If source and target show the same person, the target is the correct output, and a generator that copies it has no loss.
If the target is perturbed first, the generator must restore the original: a supervised pair without rendering.

Source: ReliableSwap (Yuan et al. 2023), section 3, for fused pictures as inputs and photographs as references; here
the generator itself replaces the pretrained swapper. Face X-ray (Li et al. 2020), section 3.2, for colours and warps
within the face.

Shape suffixes: N batch, C channels, H rows, W columns, S side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section, in_unit
from fusionray.recipes.affine import build_grid
from fusionray.recipes.augmentation import Augmentation, AugmentationConfig

# Control points of a warp along each axis: so few that features of the size of an eye move as a whole.
WARP_KNOTS = 6


class IdentityPerturbationConfig(Section):
    """Random changes that hide the identity of a picture within its face region; 0 or false turns one off."""

    fused: bool = Field(True, description="First fuse the picture with another identity, using the current generator.")
    brightness: float = Field(
        0.2, ge=0, description="Largest change of brightness, where white - black is 1.", json_schema_extra=in_unit("")
    )
    contrast: float = Field(
        0.2, ge=0, lt=1, description="Largest relative change of contrast.", json_schema_extra=in_unit("share")
    )
    saturation: float = Field(
        0.4, ge=0, le=1, description="Largest relative change of saturation.", json_schema_extra=in_unit("share")
    )
    hue: float = Field(0.05, ge=0, le=0.5, description="Largest change of hue.", json_schema_extra=in_unit("turns"))
    warp: float = Field(
        0.04,
        ge=0,
        description="Largest shift of a facial feature, as a share of the picture's side.",
        json_schema_extra=in_unit("share"),
    )


class IdentityPerturbation(nn.Module):
    """Randomly change colours and shapes of faces; each row gets its own random changes."""

    def __init__(self, config: IdentityPerturbationConfig) -> None:
        super().__init__()
        self.config = config
        self.colours = Augmentation(
            AugmentationConfig(
                brightness=config.brightness,
                contrast=config.contrast,
                saturation=config.saturation,
                hue=config.hue,
                rotation_degrees=0,
                flip=0,
            )
        )

    def forward(self, image: Tensor, face_region: Tensor) -> Tensor:
        """Perturb `image` [N,3,S,S] in [-1,1] in proportion to `face_region` [N,1,S,S]: fully at 1, not at all at 0."""
        (perturbed,) = self.colours.jitter_colours([self.warp(image, face_region)])
        return torch.lerp(image, perturbed, face_region)

    def warp(self, image_N3SS: Tensor, region_N1SS: Tensor) -> Tensor:
        """Warp the region by a smooth random displacement field."""
        if not self.config.warp:
            return image_N3SS
        count, _, _, size = image_N3SS.shape
        with torch.autocast(image_N3SS.device.type, enabled=False):
            knots = torch.rand(count, 2, WARP_KNOTS, WARP_KNOTS, device=image_N3SS.device) * 2 - 1
            # Factor 2: the square [-1,1] has sides of length 2. The region weights the shift, so its edge stays fixed.
            shift_N2SS = F.interpolate(knots, size=size, mode="bicubic") * (2 * self.config.warp) * region_N1SS.float()
            identity_grid = build_grid(torch.eye(2, 3, device=image_N3SS.device)[None], size)
            return F.grid_sample(
                image_N3SS.float(),
                identity_grid + shift_N2SS.permute(0, 2, 3, 1),
                padding_mode="border",
                align_corners=False,
            )
