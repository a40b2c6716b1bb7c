"""Adaptive discriminator augmentation (ADA), for datasets so small that the discriminator would memorise them.

Shape suffixes: N rows, C channels, H rows of pixels, W columns, K random changes.

Source: "Training generative adversarial networks with limited data" (Karras et al. 2020), sections 2 and 3, appendix B.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section, in_unit
from fusionray.recipes.affine import build_colours, build_views, recolour, warp_affine

# Changes that are drawn independently: mirror, rotate, scale, shift; brightness, contrast, saturation, hue; cutout.
NUM_CHANGES = 9


class AdaptiveAugmentationConfig(Section):
    """Adaptive discriminator augmentation: random changes of every picture, whose probability follows the training.

    Useful below about 30,000 pictures, or when the logged `discriminator_real_sign` stays above 0.6: the discriminator
    then memorises its pictures. With more pictures the probability stays near 0.
    """

    target_real_sign: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Target for the mean sign of the logits of real patches (share classified as real minus share "
        "classified as fake): 0.6 as published; 0 turns adaptive augmentation off.",
        json_schema_extra=in_unit("share"),
    )
    images_to_full: int = Field(
        500_000,
        ge=1,
        description="Images in which the probability can move from 0 to 1.",
        json_schema_extra=in_unit("images"),
    )
    interval: int = Field(
        4, ge=1, description="Steps between two corrections of the probability.", json_schema_extra=in_unit("steps")
    )
    max_probability: float = Field(
        0.8,
        ge=0,
        le=0.8,
        description="Largest probability; above 0.8 fused pictures begin to look augmented.",
        json_schema_extra=in_unit("share"),
    )
    mirror: bool = Field(True, description="Mirror half of the chosen rows.")
    rotation_degrees: float = Field(15.0, ge=0, description="Largest rotation in either direction.")
    scale: float = Field(
        0.15, ge=0, description="Standard deviation of the change of size.", json_schema_extra=in_unit("octaves")
    )
    shift: float = Field(
        0.06,
        ge=0,
        description="Standard deviation of the shift, as a share of the picture's side.",
        json_schema_extra=in_unit("share"),
    )
    brightness: float = Field(
        0.2,
        ge=0,
        description="Standard deviation of the change of brightness, where white - black is 2.",
        json_schema_extra=in_unit(""),
    )
    contrast: float = Field(
        0.3, ge=0, description="Standard deviation of the change of contrast.", json_schema_extra=in_unit("octaves")
    )
    saturation: float = Field(
        0.5, ge=0, description="Standard deviation of the change of saturation.", json_schema_extra=in_unit("octaves")
    )
    hue: float = Field(0.1, ge=0, le=0.5, description="Largest change of hue.", json_schema_extra=in_unit("turns"))
    cutout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Side of a blanked square, as a share of the picture's side; 0: none.",
        json_schema_extra=in_unit("share"),
    )


class AdaptiveAugmentation(nn.Module):
    """Apply each change with probability `probability`, which `update` adapts to the discriminator's real logits.

    At p <= 0.8, the unchanged picture stays more likely than any changed one, so that a generator that matches the
    augmented distribution also matches the original one: the changes do not leak into fused pictures.
    """

    probability: Tensor
    sign_sum: Tensor
    num_signs: Tensor
    num_steps: Tensor
    num_images: Tensor

    def __init__(self, config: AdaptiveAugmentationConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("probability", torch.zeros(()))
        self.register_buffer("sign_sum", torch.zeros(()))
        for name in ("num_signs", "num_steps", "num_images"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, real_sign: Tensor, num_images: int) -> None:
        """Add E[sign D(real)] of a step over `num_images` images; every `interval` steps, adapt the probability.

        All computations stay on the device: a decision in Python would synchronise with it.
        """
        known = real_sign.isfinite()  # ignore nonfinite steps, which are skipped
        self.sign_sum += torch.where(known, real_sign, 0.0)
        self.num_signs += known
        self.num_steps += 1
        self.num_images += num_images
        due = self.num_steps >= self.config.interval
        mean = self.sign_sum / self.num_signs.clamp_min(1)
        direction = torch.sign(mean - self.config.target_real_sign) * (due & (self.num_signs > 0))
        move = direction * self.num_images / self.config.images_to_full
        self.probability.add_(move).clamp_(0, self.config.max_probability)
        for count in (self.sign_sum, self.num_signs, self.num_steps, self.num_images):
            count.mul_(~due)

    def forward(self, *pictures: Tensor) -> tuple[Tensor, ...]:
        """Augment tensors [N,3,S,S] in [-1,1]; row i of all tensors gets the same changes. Differentiable; not clamped.

        Returns as many tensors, float32.
        """
        like = pictures[0]
        chosen_NK = torch.rand(len(like), NUM_CHANGES, device=like.device) < self.probability
        view_N23 = self.draw_views(chosen_NK[:, :4])
        linear_N33, offset_N = self.draw_colours(chosen_NK[:, 4:8])
        window_N1HW = self.draw_cutout(chosen_NK[:, 8], like.shape[-1]) if self.config.cutout else None
        changed = []
        for picture in pictures:
            moved = warp_affine(picture, view_N23, like.shape[-1], "reflection")
            coloured = recolour(moved, linear_N33, offset_N)
            changed.append(coloured if window_N1HW is None else coloured * window_N1HW)
        return tuple(changed)

    def draw_views(self, chosen_N4: Tensor) -> Tensor:
        """Draw affine maps [N,2,3] from positions in the changed picture to the original, both squares [-1,1]."""
        config, count, device = self.config, len(chosen_N4), chosen_N4.device
        mirrored, rotated, scaled, shifted = chosen_N4.float().unbind(1)
        half = (torch.rand(count, device=device) < 0.5) * mirrored
        flip = 1 - 2 * half if config.mirror else torch.ones_like(half)
        angle = (torch.rand(count, device=device) * 2 - 1) * math.radians(config.rotation_degrees) * rotated
        scale = torch.exp2(torch.randn(count, device=device) * config.scale * scaled)
        shift_N2 = torch.randn(count, 2, device=device) * (2 * config.shift) * shifted[:, None]
        return build_views(flip, angle, scale, shift_N2)

    def draw_colours(self, chosen_N4: Tensor) -> tuple[Tensor, Tensor]:
        """Draw affine maps of colours: linear parts [N,3,3], and offsets [N] that are added to all three channels."""
        config, count, device = self.config, len(chosen_N4), chosen_N4.device
        bright, contrasted, saturated, turned = chosen_N4.float().unbind(1)
        brightness = torch.randn(count, device=device) * config.brightness * bright
        contrast = torch.exp2(torch.randn(count, device=device) * config.contrast * contrasted)
        saturation = torch.exp2(torch.randn(count, device=device) * config.saturation * saturated)
        angle = (torch.rand(count, device=device) * 2 - 1) * (math.tau * config.hue) * turned
        return build_colours(contrast, saturation, angle), contrast * brightness

    def draw_cutout(self, chosen_N: Tensor, size: int) -> Tensor:
        """Draw cutout masks [N,1,S,S]: 0 in a square around a random centre in the chosen rows, 1 elsewhere."""
        centre_N2 = torch.rand(len(chosen_N), 2, device=chosen_N.device)
        axis = (torch.arange(size, device=chosen_N.device) + 0.5) / size
        inside_N2S = (axis - centre_N2[:, :, None]).abs() < self.config.cutout / 2
        cut_NSS = inside_N2S[:, 0, :, None] & inside_N2S[:, 1, None, :] & chosen_N[:, None, None]
        return (~cut_NSS).float()[:, None]
