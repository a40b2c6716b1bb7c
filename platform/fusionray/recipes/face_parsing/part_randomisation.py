"""Make rendered heads so various that a parser of photographs can learn from them: domain randomisation.

A renderer knows the part of every pixel, but its skin, hair and cloth look like no photograph's. Each part gets a
colour and a texture of its own, backgrounds are exchanged, things come in front of the face, and light, focus and noise
change; what stays the same over all that is where the parts are, and that is what a parser shall learn.

Source: Tobin et al. 2017, Domain randomization; Wood et al. 2021, Fake it till you make it, for faces.

Shape suffixes: N batch, C channels, S side, P parts; planes [N,1,S,S].
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fusionray.config import Section, in_unit
from fusionray.recipes.affine import build_views, warp_affine
from fusionray.recipes.augmentation import Augmentation, AugmentationConfig, degrade_resolution

# Cells of the noise that makes textures, from folds to grain, as a share of the side.
TEXTURE_SHARES = (0.05, 0.2, 0.5)
LIGHT_CELLS = 3
# Skin has less texture than cloth, and one colour on all its parts.
SKIN_TEXTURE = 0.4
# Width of the edge of what is put in front of a face, as a share of the side.
EDGE_SHARE = 0.015


class RandomisationConfig(Section):
    """How much rendered heads are changed; a share is that of the pictures, 0 turns a change off."""

    recoloured: float = Field(
        0.8, ge=0, le=1, description="Pictures whose parts get other colours.", json_schema_extra=in_unit("share")
    )
    colour: float = Field(
        0.35, ge=0, description="Deviation of these colours, where white - black is 2.", json_schema_extra=in_unit("")
    )
    texture: float = Field(
        0.25, ge=0, description="Largest deviation of the textures of parts.", json_schema_extra=in_unit("")
    )
    bared: float = Field(
        0.4,
        ge=0,
        le=1,
        description="Pictures whose clothes give way to skin below the neck.",
        json_schema_extra=in_unit("share"),
    )
    exchanged: float = Field(
        0.5, ge=0, le=1, description="Pictures with another background.", json_schema_extra=in_unit("share")
    )
    covered: float = Field(
        0.35, ge=0, le=1, description="Pictures with something in front.", json_schema_extra=in_unit("share")
    )
    grey: float = Field(0.2, ge=0, le=1, description="Pictures without colour.", json_schema_extra=in_unit("share"))
    light: float = Field(0.4, ge=0, description="Deviation of the light over a picture.", json_schema_extra=in_unit(""))
    noise: float = Field(0.08, ge=0, description="Largest deviation of pixel noise.", json_schema_extra=in_unit(""))
    rotation_degrees: float = Field(20.0, ge=0, description="Largest rotation in either direction.")
    zoom: float = Field(
        0.25, ge=0, description="Largest change of scale, as a natural logarithm.", json_schema_extra=in_unit("")
    )
    shift: float = Field(
        0.1, ge=0, description="Largest shift in each direction.", json_schema_extra=in_unit("share of the side")
    )
    min_resolution: float = Field(
        0.25, gt=0, le=1, description="Strongest random loss of resolution.", json_schema_extra=in_unit("share")
    )
    colours: AugmentationConfig = AugmentationConfig(brightness=0.2, contrast=0.3, saturation=0.6, hue=0.1)


class PartRandomisation(nn.Module):
    """Change pictures [N,3,S,S] in [-1,1], and their parts [N,P,S,S] where that moves or hides them.

    `skin`: the numbers of the parts that are skin: face, ears, neck; `clothes`: that of the clothes. Part 0 is the
    background, and what is put in front of a face counts as background, too.
    """

    def __init__(self, config: RandomisationConfig, skin: tuple[int, int, int], clothes: int) -> None:
        super().__init__()
        self.config = config
        self.skin = skin
        self.clothes = clothes
        self.jitter = Augmentation(config.colours)

    def forward(self, picture: Tensor, parts: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return picture, parts and `known` [N,1,S,S], where the parts are known, as changed."""
        picture, parts, known = self.move(picture, parts, known)
        picture, parts = self.bare_necks(picture, parts)
        picture = self.exchange_backgrounds(self.recolour_parts(picture, parts), parts)
        picture, parts = self.cover(picture, parts)
        return self.develop(picture).clamp(-1, 1), parts, known

    def move(self, picture: Tensor, parts: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mirror, rotate, zoom and shift all alike."""
        config, count = self.config, len(picture)
        draws = torch.rand(count, 5, device=picture.device) * 2 - 1
        view = build_views(
            draws[:, 0].sign(),
            draws[:, 1] * math.radians(config.rotation_degrees),
            (draws[:, 2] * config.zoom).exp(),
            draws[:, 3:] * 2 * config.shift,
        )
        moved = warp_affine(torch.cat([picture, parts, known], dim=1), view, picture.shape[-1])
        return moved[:, :3], moved[:, 3:-1], moved[:, -1:]

    def bare_necks(self, picture: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Turn some clothes below the neck into skin, for the world has high necklines: round, pointed, or none."""
        count, size, device = len(picture), picture.shape[-1], picture.device
        axis = (torch.arange(size, device=device) + 0.5) / size * 2 - 1
        neck = parts[:, self.skin[2]]
        total = neck.sum((1, 2)).clamp_min(1.0)[:, None, None]
        middle, height = ((neck * place).sum((1, 2), keepdim=True) / total for place in (axis, axis[:, None]))
        depth, width, point = torch.rand(3, count, 1, 1, device=device)
        below = (axis[:, None] - height) / (0.15 + 1.2 * depth)
        # At `point` 1 the neckline is a V, at 0 a U.
        half = (0.15 + 0.9 * width) * (1 - below.clamp(0, 1)).pow(0.3 + 0.9 * point)
        inside = (half - (axis - middle).abs()) * (below < 1) / EDGE_SHARE
        share = (inside.clamp(-20, 20) * 0.5).sigmoid() * self.choose(picture, self.config.bared)[:, 0]
        bared = (share * parts[:, self.clothes])[:, None]
        mean = (picture * neck[:, None]).sum((2, 3), keepdim=True) / total[:, None]
        folds = picture - (picture * bared).sum((2, 3), keepdim=True) / bared.sum((2, 3), keepdim=True).clamp_min(1.0)
        picture = torch.lerp(picture, mean + 0.3 * folds, bared)
        parts = parts.clone()
        parts[:, self.clothes] -= bared[:, 0]
        parts[:, self.skin[2]] += bared[:, 0]
        return picture, parts

    def recolour_parts(self, picture: Tensor, parts: Tensor) -> Tensor:
        """Add a colour and a texture to each part; all skin gets nearly the same."""
        config, count, num_parts = self.config, *parts.shape[:2]
        colour_NPC = torch.randn(count, num_parts, 3, device=picture.device) * config.colour
        strength_NPT = torch.rand(count, num_parts, len(TEXTURE_SHARES), device=picture.device) * config.texture
        face, *others = self.skin
        strength_NPT[:, face] *= SKIN_TEXTURE
        for part in others:
            colour_NPC[:, part] = colour_NPC[:, face] + 0.2 * colour_NPC[:, part]
            strength_NPT[:, part] = strength_NPT[:, face]
        changed = torch.einsum("npc,npij->ncij", colour_NPC, parts)
        for number, share in enumerate(TEXTURE_SHARES):
            strength = torch.einsum("np,npij->nij", strength_NPT[:, :, number], parts)[:, None]
            changed = changed + strength * draw_noise(picture, max(2, round(share * picture.shape[-1])))
        return picture + changed * self.choose(picture, config.recoloured)

    def exchange_backgrounds(self, picture: Tensor, parts: Tensor) -> Tensor:
        """Put the whole picture of another row, upside down and with it another person, behind some heads."""
        share = parts[:, :1] * self.choose(picture, self.config.exchanged)
        return torch.lerp(picture, picture.roll(1, 0).flip(2), share)

    def cover(self, picture: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Put an ellipse in front of some heads, in a random colour or, as a hand has it, in that of the face."""
        count, size, device = len(picture), picture.shape[-1], picture.device
        axis = (torch.arange(size, device=device) + 0.5) / size * 2 - 1
        place, half = torch.rand(2, count, 2, device=device)
        place, half = place * 1.6 - 0.8, 0.1 + 0.35 * half
        angle = torch.rand(count, device=device) * math.pi
        x, y = axis[None, None] - place[:, :1, None], axis[None, :, None] - place[:, 1:, None]
        cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
        across, along = (cos * x + sin * y) / half[:, :1, None], (cos * y - sin * x) / half[:, 1:, None]
        inside = 1 - (across.square() + along.square()).sqrt()
        alpha = (inside * 0.25 / EDGE_SHARE).sigmoid()[:, None] * self.choose(picture, self.config.covered)
        face = parts[:, self.skin[0]][:, None]
        mean = (picture * face).sum((2, 3), keepdim=True) / face.sum((2, 3), keepdim=True).clamp_min(1.0)
        colour = torch.where(
            torch.rand(count, 1, 1, 1, device=device) < 0.5, mean, torch.rand_like(mean) * 2 - 1
        ) + self.config.texture * draw_noise(picture, max(2, size // 6))
        parts = parts * (1 - alpha)
        return torch.lerp(picture, colour, alpha), torch.cat([parts[:, :1] + alpha, parts[:, 1:]], dim=1)

    def develop(self, picture: Tensor) -> Tensor:
        """Change light, colours and focus, and add noise."""
        config = self.config
        light = (1 + config.light * draw_noise(picture, LIGHT_CELLS)[:, :1]).clamp(0.3, 1.7)
        (picture,) = self.jitter.jitter_colours([((picture + 1) * light - 1).clamp(-1, 1)])
        grey = picture.mean(dim=1, keepdim=True).expand_as(picture)
        picture = torch.lerp(picture, grey, self.choose(picture, config.grey))
        picture = degrade_resolution(picture, config.min_resolution)
        strength = torch.rand(len(picture), 1, 1, 1, device=picture.device) * config.noise
        return picture + strength * torch.randn_like(picture)

    @staticmethod
    def choose(like: Tensor, share: float) -> Tensor:
        """Choose this share of the rows: float32 [N,1,1,1], 0 or 1."""
        return (torch.rand(len(like), 1, 1, 1, device=like.device) < share).float()


def draw_noise(like: Tensor, cells: int) -> Tensor:
    """Draw smooth colour noise [N,3,S,S] of deviation near 1, with `cells` cells a side."""
    noise = torch.randn(len(like), 3, cells, cells, device=like.device)
    return F.interpolate(noise, size=like.shape[-1], mode="bilinear", align_corners=False)
