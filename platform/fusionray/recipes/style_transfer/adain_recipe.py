"""AdaIN recipe: the decoder of the usual baseline of style transfer, on pairs and with the losses of the other recipe.

Shape suffixes: N batch, S side.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fusionray.nets.adain import AdainDecoder, AdainNetwork, adapt_features
from fusionray.nets.pixels import to_float, to_uint8
from fusionray.recipes.recipe import Losses, Phase, PhaseInput
from fusionray.recipes.style_transfer.losses import relative_distance, style_loss
from fusionray.recipes.style_transfer.pair_recipe import PairRecipe, StylePairs
from fusionray.recipes.style_transfer.perceptual import features_of
from fusionray.recipes.style_transfer.settings import AdainConfig


class AdainRecipe(PairRecipe):
    """Train a decoder of adapted features of a frozen perceptual network.

    Source: Huang and Belongie 2017, equations 11 to 13; the style loss also compares correlations, as the other recipe.
    """

    ema_names = frozenset({"decoder"})

    def __init__(self, config: AdainConfig, perceptual: nn.Module) -> None:
        super().__init__(config.augmentation, perceptual)
        self.config = config
        self.content_layers = (self.num_maps - 1,)
        self.networks: Mapping[str, nn.Module] = {"decoder": AdainDecoder(self.channels)}
        self.optimizers = {"decoder": config.optimizer}
        self.phases = (Phase("paint", "decoder", self.paint),)

    def paint(self, step: PhaseInput[StylePairs]) -> Losses:
        """Return the weighted sum of the losses in the features of what the decoder makes."""
        perceptual = step.frozen["perceptual"]
        with torch.no_grad():
            style_maps, content_maps = (
                features_of(perceptual, picture) for picture in (step.batch.style, step.batch.content)
            )
            wanted = adapt_features(content_maps[-1], style_maps[-1])
        output_maps = features_of(perceptual, step.networks["decoder"](wanted))
        parts = {
            "content": relative_distance(output_maps[-1].float(), wanted.float()).mean(),
            "style": style_loss(output_maps, style_maps).mean(),
        }
        return Losses(parts["content"] + self.config.style_weight * parts["style"], parts)

    def build_model(self, networks: Mapping[str, nn.Module]) -> AdainNetwork:
        """Return encoder and decoder as one model."""
        perceptual = self.frozen["perceptual"]
        return AdainNetwork(perceptual, networks["decoder"], lambda picture: features_of(perceptual, picture))

    @torch.no_grad()
    def preview(self, networks: Mapping[str, nn.Module], batch: StylePairs) -> Tensor:
        """Draw rows of style, content and the painted picture."""
        pictures = (to_float(batch.style), to_float(batch.content))
        painted = self.build_model(networks)(*pictures).float()
        return torch.stack([to_uint8(picture) for picture in (*pictures, painted)], dim=1)
