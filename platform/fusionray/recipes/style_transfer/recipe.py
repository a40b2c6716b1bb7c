"""Style-transfer recipe: a network that paints contents in styles, supervised by a frozen perceptual network.

Shape suffixes: N batch, C channels, H rows, W columns, S side, L style length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fusionray.nets.pixels import to_float, to_uint8
from fusionray.nets.style_transfer import StyleNetworkConfig, StyleTransferNetwork, mix_styles
from fusionray.recipes.augmentation import Augmentation
from fusionray.recipes.recipe import Losses, Phase, PhaseInput
from fusionray.recipes.style_transfer.losses import content_loss, contrast_loss, structure_loss, style_loss
from fusionray.recipes.style_transfer.perceptual import features_of
from fusionray.recipes.style_transfer.scoring import StyleScorer
from fusionray.recipes.style_transfer.settings import StyleTransferConfig
from fusionray.types import Batch

SCORED_ROWS = 16


@dataclass(frozen=True)
class StylePairs(Batch):
    """Styles and contents [N,3,S,S]: uint8 as they are read, float in [-1,1] as they are learned from."""

    style: Tensor
    content: Tensor


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


class StyleTransferRecipe:
    """Train the network on pairs of style and content.

    Raises: ValueError if the perceptual network lacks one of `config.content_layers`.
    """

    ema_names = frozenset({"stylizer"})

    def __init__(self, config: StyleTransferConfig, perceptual: nn.Module) -> None:
        self.config = config
        num_maps = len(features_of(perceptual, torch.zeros(1, 3, 32, 32)))
        if not all(0 <= layer < num_maps for layer in config.content_layers):
            raise ValueError(
                f"recipe.content_layers={config.content_layers}: the perceptual network has {num_maps} feature maps, "
                f"numbered from 0 to {num_maps - 1}"
            )
        self.networks: Mapping[str, nn.Module] = {"stylizer": StyleTransferTraining(config.network)}
        self.augmentation = Augmentation(config.augmentation)
        self.frozen: Mapping[str, nn.Module] = {"perceptual": perceptual, "augmentation": self.augmentation}
        self.adaptive: Mapping[str, nn.Module] = {}
        self.optimizers = {"stylizer": config.optimizer}
        self.phases = (Phase("paint", "stylizer", self.paint),)

    def prepare(self, batch: StylePairs) -> StylePairs:
        """Augment styles and contents apart: more palettes than there are pictures."""
        (style,), (content,) = self.augmentation(to_float(batch.style)), self.augmentation(to_float(batch.content))
        return StylePairs(style, content)

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

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Do nothing: there are no adaptive modules."""

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

    @torch.no_grad()
    def measure(self, networks: Mapping[str, nn.Module], batch: StylePairs) -> dict[str, Tensor]:
        """Measure held-out pairs, [N] each, in the features of the supervising network, which is not independent."""
        scorer = StyleScorer(self.frozen["perceptual"], self.config.content_layers)
        return score_pairs(scorer, find_network(networks), batch)

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the mean of each column as `validation_<name>`, and the style loss over that of the contents."""
        return summarise_scores(columns)


@torch.no_grad()
def score_pairs(scorer: StyleScorer, network: StyleTransferNetwork, batch: StylePairs) -> dict[str, Tensor]:
    """Paint the contents of a uint8 batch in its styles and score the outputs, [N] by name, a few rows at a time.

    The feature maps of all rows of a validation at once would take gigabytes.
    """
    parts: list[dict[str, Tensor]] = []
    for style, content in zip(*(torch.split(part, SCORED_ROWS) for part in (batch.style, batch.content)), strict=True):
        pictures = (to_float(style), to_float(content))
        parts.append(scorer.score(network(*pictures), pictures))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def summarise_scores(columns: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean of each score as `validation_<name>`, and the ratios of means."""
    means = {name: float(column.mean()) for name, column in columns.items()}
    for name, (above, below) in StyleScorer.ratios.items():
        if means.get(below):
            means[name] = means[above] / means[below]
    return {f"validation_{name}": value for name, value in means.items()}


def find_network(networks: Mapping[str, nn.Module]) -> StyleTransferNetwork:
    """Return the painting network among the networks of a recipe."""
    network = networks["stylizer"].network
    assert isinstance(network, StyleTransferNetwork)
    return network
