"""Style-transfer recipe: a network that paints contents in styles, supervised by a frozen perceptual network.

Shape suffixes: N batch, C channels, H rows, W columns, S side, L style length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fusionray.nets.pixels import to_float, to_uint8
from fusionray.nets.style_transfer import StyleNetworkConfig, StyleTransferNetwork, mix_styles
from fusionray.recipes.recipe import Losses, Phase, PhaseInput
from fusionray.recipes.style_transfer.losses import content_loss, contrast_loss, structure_loss, style_loss
from fusionray.recipes.style_transfer.pair_recipe import PairRecipe, StylePairs
from fusionray.recipes.style_transfer.perceptual import features_of
from fusionray.recipes.style_transfer.settings import StyleTransferConfig


class StyleTransferTraining(nn.Module):
    """The network with all that its losses need in one forward pass; only `network` is used after training."""

    def __init__(self, config: StyleNetworkConfig) -> None:
        super().__init__()
        self.network = StyleTransferNetwork(config)

    def forward(self, style: Tensor, content: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the painted pictures [N,3,S,S], and the encoded styles [N,L] of the styles and of the painted."""
        wanted = self.network.encode_style(style)
        painted = self.network.paint(content, wanted)
        return painted, wanted, self.network.encode_style(painted)


class StyleTransferRecipe(PairRecipe):
    """Train the network on pairs of style and content.

    Raises: ValueError if the perceptual network lacks one of `config.content_layers`.
    """

    ema_names = frozenset({"stylizer"})

    def __init__(self, config: StyleTransferConfig, perceptual: nn.Module) -> None:
        super().__init__(config.augmentation, perceptual)
        self.config = config
        self.content_layers = config.content_layers
        if not all(0 <= layer < self.num_maps for layer in config.content_layers):
            raise ValueError(
                f"recipe.content_layers={config.content_layers}: the perceptual network has {self.num_maps} feature "
                f"maps, numbered from 0 to {self.num_maps - 1}"
            )
        self.networks: Mapping[str, nn.Module] = {"stylizer": StyleTransferTraining(config.network)}
        self.optimizers = {"stylizer": config.optimizer}
        self.phases = (Phase("paint", "stylizer", self.paint),)

    def build_model(self, networks: Mapping[str, nn.Module]) -> StyleTransferNetwork:
        """Return the painting network."""
        return find_network(networks)

    def paint(self, step: PhaseInput[StylePairs]) -> Losses:
        """Return the weighted sum of the losses; some contents are also painted in their own style."""
        weights, batch = self.config.weights, step.batch
        count = len(batch)
        own = math.ceil(count * self.config.identity_share) if weights.identity else 0
        painted, wanted_NL, found_NL = step.networks["stylizer"](
            torch.cat([batch.style, batch.content[:own]]), torch.cat([batch.content, batch.content[:own]])
        )
        output = painted[:count]
        output_maps = features_of(step.frozen["perceptual"], output)
        with torch.no_grad():
            style_maps, content_maps = (
                features_of(step.frozen["perceptual"], picture) for picture in (batch.style, batch.content)
            )
        parts: dict[str, Tensor] = {}
        if weights.content:
            parts["content"] = content_loss(self.pick(output_maps), self.pick(content_maps)).mean()
        if weights.style:
            parts["style"] = style_loss(output_maps, style_maps).mean()
        if weights.structure:
            parts["structure"] = structure_loss(output, batch.content).mean()
        if weights.contrast:
            parts["contrast"] = contrast_loss(found_NL[:count], wanted_NL[:count])
        if own:
            parts["identity"] = (painted[count:].float() - batch.content[:own]).abs().mean()
        total = torch.stack([getattr(weights, name) * value for name, value in parts.items()]).sum()
        return Losses(total, parts)

    def pick(self, maps: list[Tensor]) -> list[Tensor]:
        """Return the feature maps that the content loss compares."""
        return [maps[layer] for layer in self.config.content_layers]

    @torch.no_grad()
    def preview(self, networks: Mapping[str, nn.Module], batch: StylePairs) -> Tensor:
        """Draw rows of style, content, the painted picture, and that at strengths 1/2 and 0."""
        style, content = to_float(batch.style), to_float(batch.content)
        network = find_network(networks)
        codes = [network.encode_style(picture) for picture in (style, content)]
        painted = [
            network.paint(content, mix_styles(codes, [strength, 1 - strength])).float() for strength in (1.0, 0.5, 0.0)
        ]
        return torch.stack([to_uint8(picture) for picture in (style, content, *painted)], dim=1)


def find_network(networks: Mapping[str, nn.Module]) -> StyleTransferNetwork:
    """Return the painting network among the networks of a recipe."""
    network = networks["stylizer"].network
    assert isinstance(network, StyleTransferNetwork)
    return network
